"""Pools, moves, layers and heads in the form that integer kernels exist for."""
