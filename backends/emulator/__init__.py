"""The Kimi emulator: an HTTP service that behaves like an upstream of Kimi K3.1 Pro, with synthetic text.

It speaks four dialects (api.moonshot.ai, OpenRouter, vLLM, SGLang) and can be made to misbehave. It is what
`make run` answers from when no upstream is configured and what the tests have as upstreams. It shares no code with
`pricing` and counts, prices and invoices by itself, so that its invoice agreeing with the gateway's ledger means
something.

    app (ASGI, paths, keys)  ->  chat (one exchange)  ->  parse, thinking  ->  contract (the dialect's rules)
    prompt (encoding, tokens) -> cache (prefix blocks) -> compose (thought, text, calls; channels: unparsed)
    shape (fields of answers) -> wire (bytes and pace) -> faults (what goes wrong) -> player (sends it)
    profile (facts of a dialect): moonshot, openrouter, vllm, sglang; prices + invoice; limits; seen
    fault_file (TOML) -> fault_options, fault_connections, fault_answers, fault_streams (the kinds), script_parts

Paths, as far as the dialect has them: `/v1/chat/completions`, `/v1/models[/{id}]`,
`/v1/tokenizers/estimate-token-count`, `/v1/users/me/balance`, `/v1/credits`, `/tokenize`, `/version`,
`/server_info`, `/metrics`, `/load`, `/v1/loads`, `/health`; for whoever tests with it `GET /emulator/invoice`,
`GET /emulator/requests[?clear=1][&raw=1]`, `POST /emulator/clock` (`{"advance_s": 301}`), `GET /emulator/faults`,
`POST /emulator/faults` (the text of a fault file), `POST /emulator/reset`.

A user message steers the answer by naming tools (see `wishes`) or with one directive in double brackets, a JSON
object: `[[emulator {"call": ["a", {"name": "b", "arguments": {}}], "thought_tokens": 20, "text_tokens": 500}]]`.
"""
