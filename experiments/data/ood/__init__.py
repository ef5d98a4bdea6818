"""Out-of-distribution image sets: downloaded ones and small generated ones."""
