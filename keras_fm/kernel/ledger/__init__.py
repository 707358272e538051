"""The ledger, which no crash, copy or hostile file may change, and the privacy
statement that is made from it."""
