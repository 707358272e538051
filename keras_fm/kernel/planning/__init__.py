"""Noise for a budget. No guarantee rests on this package: the ledger composes
what was charged, wherever the numbers come from."""
