"""Activations and norms that exporters spell out in several nodes, as the one operator that they are."""
