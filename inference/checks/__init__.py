"""Is the model right, and is the posterior? Checks that a user can run on a model of their own."""
