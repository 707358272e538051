"""Privacy loss distributions that dp_accounting does not have."""
