"""One file per step; `REVISIONS` in `pricing.ledger.store.tables` lists them."""
