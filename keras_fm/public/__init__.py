"""Feature maps that were made without private records."""
