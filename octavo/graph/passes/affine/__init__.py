"""Constant factors, shifts and norms, taken into the layers beside them."""
