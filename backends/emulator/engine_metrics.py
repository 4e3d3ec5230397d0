"""What the emulated engines say of their load: true numbers, in the words that were recorded.

Of the hundreds of numbers that engines show only those about load are here. The emulator queues nothing: a request
runs from its admission to its end, and nothing waits.
"""

from backends.emulator.state import State
from backends.json import JsonObject


def metrics(state: State) -> bytes:
    """`GET /metrics` in Prometheus' text form."""
    words = state.profile.metrics
    if words is None:
        return b""
    labels = words.labels.replace("MODEL", state.profile.models[0].id)
    lines = []
    for name, help, value in (
        (words.running, "Number of requests that run.", state.running),
        (words.waiting, "Number of requests that wait.", 0),
        (words.cache_used, "Part of the KV cache in use, 0 to 1.", _cache_used(state)),
    ):
        lines += [f"# HELP {name} {help}", f"# TYPE {name} gauge", f"{name}{{{labels}}} {float(value)}"]
    return "\n".join(lines).encode() + b"\n"


def server_load(state: State) -> JsonObject:
    """`GET /load` of vLLM that was started with `--enable-server-load-tracking`."""
    return {"server_load": state.running}


def loads(state: State) -> JsonObject:
    """`GET /v1/loads` of SGLang, by its source: one entry, for its only data-parallel rank."""
    rank: JsonObject = {"dp_rank": 0, "num_running_reqs": state.running, "num_waiting_reqs": 0}
    rank["token_usage"] = round(_cache_used(state), 4)
    return {"version": state.profile.version, "loads": [rank]}


def _cache_used(state: State) -> float:
    return len(state.cache) / state.config.max_cache_blocks
