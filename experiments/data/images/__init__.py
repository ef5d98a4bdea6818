"""Image data sets, their loader, augmentation and corrupted test sets."""
