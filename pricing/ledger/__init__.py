"""The ledger: one row per request, by way of a local append-only journal, into SQL."""
