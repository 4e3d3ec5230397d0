"""llama.cpp's server, recorded with build b11549 and a K3 chat template."""

from backends.dialect import Dialect, LoadReport

DIALECT = Dialect(
    name="llamacpp",
    models={"kimi-k3.1-pro": "moonshotai/Kimi-K3.1-Pro"},
    # A history thought is read from `reasoning_content`, the default; `reasoning` is dropped. `reasoning_effort`
    # and `thinking` are ignored: only what the chat template takes has an effect.
    effort_path=("chat_template_kwargs", "thinking_effort"),
    thinking_off={"chat_template_kwargs": {"thinking": False}},
    own_fields=frozenset(
        {
            "cache_prompt",
            "chat_template_kwargs",
            "grammar",
            "id_slot",
            "ignore_eos",
            "json_schema",
            "min_p",
            "n_keep",
            "n_probs",
            "parse_tool_calls",
            "reasoning_format",
            "repeat_last_n",
            "repeat_penalty",
            "samplers",
            "timings_per_token",
            "top_k",
            "typical_p",
        }
    ),
    key_required=False,
    # No /version (recorded, get-version); /props has the build, such as b11549-1a2b3c4d.
    version_paths=("/props",),
    version_field="build_info",
    # With --metrics (recorded, get-metrics-head); older builds also had the cache's use.
    load=LoadReport(
        running=("llamacpp:requests_processing",),
        waiting=("llamacpp:requests_deferred",),
        cache_used=("llamacpp:kv_cache_usage_ratio",),
    ),
)
