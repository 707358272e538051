"""Maps that no private record shaped."""
