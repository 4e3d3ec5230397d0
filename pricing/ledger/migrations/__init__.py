"""The ledger's schema, step by step (Alembic). Released steps are never edited: a change is a new step."""
