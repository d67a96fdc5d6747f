"""Codes, ranges and channels tried against what held-out images say."""
