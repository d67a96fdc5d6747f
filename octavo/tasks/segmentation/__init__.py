"""Segmentation: class maps on the photo, the confusion matrix, and the score of a variant."""
