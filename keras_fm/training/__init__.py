"""A private fit: check, charge the ledger, release, learn, in this order."""
