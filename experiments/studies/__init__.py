"""Work on several runs: studies, comparisons, posterior checks.

May import ``reporting``, ``plots``, ``evaluation`` and what is above them."""
