"""vLLM with its kimi_k3 parsers, read in 0.33.0 and recorded with 0.32.0."""

from backends.contract import Contract
from backends.dialect import Dialect, Launch, LoadReport

DIALECT = Dialect(
    name="vllm",
    url_variable="VLLM_BASE_URL",
    models={"kimi-k3.1-pro": "moonshotai/Kimi-K3.1-Pro"},
    # Versions between the rename (#27752) and late 2026 dropped reasoning_content on input without a word
    # (#38488); both names with one text serve every version, and llama.cpp's server as well.
    thought_in=("reasoning_content", "reasoning"),
    # renderers/kimi_k3.py maps `none` to thinking off; `thinking: {"type": "disabled"}` is ignored there.
    thinking_off={"reasoning_effort": "none"},
    own_fields=frozenset(
        {
            "add_generation_prompt",
            "cache_salt",
            "chat_template_kwargs",
            "continue_final_message",
            "guided_choice",
            "guided_grammar",
            "guided_json",
            "guided_regex",
            "ignore_eos",
            "include_reasoning",
            "min_tokens",
            "priority",
            "repetition_penalty",
            "min_p",
            "top_k",
            "request_id",
            "session_id",
            "skip_special_tokens",
            "stop_token_ids",
            "structured_outputs",
            "thinking_token_budget",
        }
    ),
    conversation_header="X-Session-ID",
    partial="continue_final_message",
    # "When using `tool_choice`, `tools` must be set." (recorded, 0.32.0)
    contract=Contract(choices_with_tools=frozenset({"auto", "required"})),
    marks_named_call_stop=True,
    key_required=False,
    # {"version":"0.32.0"}, without a key too (recorded, get-version)
    version_paths=("/version",),
    # Both generations of the cache's name: kv_… is recorded (0.32.0, metrics-after), gpu_… older. One `engine`
    # label per data-parallel rank. /load counts what the server has taken, and says 0 unless it was started with
    # --enable-server-load-tracking; /health is 503 once the engine process is dead (recorded, failures).
    load=LoadReport(
        paths=("/metrics", "/load"),
        running=("vllm:num_requests_running",),
        waiting=("vllm:num_requests_waiting",),
        cache_used=("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    ),
    # 0.33.0: with the flag a usage report has cached_tokens even where it is 0.
    launch=Launch(
        cached_counts="--enable-prompt-tokens-details",
        thoughts="--reasoning-parser kimi_k3",
        tools="--enable-auto-tool-choice --tool-call-parser kimi_k3",
        request_ids="--enable-request-id-headers",
    ),
)
