"""Out-of-distribution (OOD) image sets: downloaded, read from a folder, or generated."""
