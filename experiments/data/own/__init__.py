"""A user's own data: folders of images, files of texts or tables, and Hugging Face data sets."""
