"""One request from its body to its ledger row: read, plan, send, stream, settle."""
