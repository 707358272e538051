"""A private fit: what is read, checked, charged and learned, in order."""
