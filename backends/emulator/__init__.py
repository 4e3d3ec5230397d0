"""The Kimi emulator: an HTTP service that behaves like api.moonshot.ai's Kimi K3.1 Pro, with synthetic text.

It is what `make run` answers from when no upstream is configured and what the tests have as an upstream. It shares
no code with `pricing` and counts, prices and invoices by itself, so that its invoice agreeing with the gateway's
ledger means something.

    app (ASGI, paths, keys)  ->  chat (one exchange)  ->  request (parse)  ->  contract (the dialect's rules)
    prompt (encoding, tokens) -> cache (prefix blocks) -> compose (thought, text, calls) -> wire (bytes) -> player
    profile (facts of a dialect), moonshot (the one there is), prices + invoice, seen (what was received)

Paths: `/v1/chat/completions`, `/v1/models[/{id}]`, `/v1/tokenizers/estimate-token-count`, `/v1/users/me/balance`,
`/health`; for whoever tests with it `GET /emulator/invoice`, `GET /emulator/requests[?clear=1][&raw=1]`,
`POST /emulator/clock` (`{"advance_s": 301}`), `POST /emulator/reset`.

A user message steers the answer by naming tools (see `wishes`) or with one directive in double brackets, a JSON
object: `[[emulator {"call": ["a", {"name": "b", "arguments": {}}], "thought_tokens": 20, "text_tokens": 500}]]`.
"""
