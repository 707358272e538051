"""Layers below a head that learn from their own release."""
