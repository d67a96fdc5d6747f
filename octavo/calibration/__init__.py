"""Calibration: one streaming pass makes mergeable statistics; ranges are chosen from them later, without an image."""
