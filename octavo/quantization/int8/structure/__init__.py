"""What a graph says before any number: its units, which of them can be INT8, what shares channels, what the target wants."""
