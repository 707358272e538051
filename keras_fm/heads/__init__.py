"""Output layers: what they release, and how they learn from a release."""
