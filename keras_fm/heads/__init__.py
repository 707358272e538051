"""Output layers: what is released of them, and how they learn from it."""
