"""Where the answers of requests with an Idempotency-Key are kept: `opening.open_answers` gives the right store."""
