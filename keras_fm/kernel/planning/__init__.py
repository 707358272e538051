"""Noise for a budget, and what is made of a release. No guarantee rests on it:
the ledger composes what was charged, whoever asked for it."""
