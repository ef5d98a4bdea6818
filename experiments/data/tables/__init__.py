"""Tables of numbers and categories: their encoding, data set and loader."""
