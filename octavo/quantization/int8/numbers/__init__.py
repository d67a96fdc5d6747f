"""Scales, zero points and codes: of activations from statistics, of weights, and the shifts that biases take back."""
