"""Privacy losses that dp_accounting does not have."""
