"""The proof of what was kept: fidelity, task metrics, bootstrap intervals, gates, tables and plots' data."""
