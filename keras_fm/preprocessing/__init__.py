"""Layers below a head that learn from a release of their own."""
