"""Scenes that the project draws itself, with exact annotations: data where no photos may be shipped."""
