"""Embeddings: a vector an image, by which images of one identity are told from images of two."""
