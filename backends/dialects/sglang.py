"""SGLang with its kimi_k3 parsers, read and recorded in 0.5.23."""

from backends.contract import Contract
from backends.dialect import Dialect, Launch, LoadReport

DIALECT = Dialect(
    name="sglang",
    url_variable="SGLANG_BASE_URL",
    models={"kimi-k3.1-pro": "moonshotai/Kimi-K3.1-Pro"},
    # A history thought is read from `reasoning_content`, the default; `reasoning` is dropped without a word.
    # Any effort of its list is accepted and medium runs as max; `none` is thinking off, and `thinking` is ignored.
    thinking_off={"reasoning_effort": "none"},
    own_fields=frozenset(
        {
            "cache_salt",
            "chat_template_kwargs",
            "continue_final_message",
            "custom_logit_processor",
            "custom_params",
            "ebnf",
            "extra_key",
            "ignore_eos",
            "lora_path",
            "min_p",
            "min_tokens",
            "no_stop_trim",
            "priority",
            "reasoning",
            "regex",
            "repetition_penalty",
            "return_cached_tokens_details",
            "return_hidden_states",
            "rid",
            "separate_reasoning",
            "session_id",
            "session_params",
            "skip_special_tokens",
            "stop_regex",
            "stop_token_ids",
            "stream_reasoning",
            "top_k",
        }
    ),
    # Its router keeps a conversation on one worker by this header.
    conversation_header="x-smg-routing-key",
    partial="continue_final_message",
    # "Tools cannot be empty if tool choice is set to required." (recorded, 0.5.23)
    contract=Contract(choices_with_tools=frozenset({"required"})),
    # With tool_choice none, or without tools, its tool parser does not run, and a call that the model makes all
    # the same comes as content (recorded, 0.5.23, tools-none; sgl-project/sglang#39583, #35393).
    leaked_call_opening="<|open|>tools<|sep|><|open|>call ",
    key_required=False,
    # Beside the arguments it was started with; the second path is the older name. It has no /version (recorded,
    # get-version).
    version_paths=("/server_info", "/get_server_info"),
    # /v1/loads (srt/entrypoints/v1_loads.py) is 300 bytes; /metrics is 50 to 90 KB, with --enable-metrics only;
    # /get_load is what older versions have. The colon of the names is an underscore in the text form of /v1/loads
    # and behind some collectors. Ranks of one model share their numbers; by `dp_rank` they add up. /health has the
    # model make a token: it took a second when idle (recorded, get-health).
    load=LoadReport(
        paths=("/v1/loads?include=core", "/metrics", "/get_load"),
        running=("sglang:num_running_reqs", "sglang_num_running_reqs"),
        waiting=("sglang:num_queue_reqs", "sglang_num_queue_reqs"),
        cache_used=("sglang:token_usage", "sglang_token_usage"),
        copy_labels=frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "pid"}),
        health_is_cheap=False,
    ),
    # 0.5.23; its answers carry no request id, whatever the flags.
    launch=Launch(
        cached_counts="--enable-cache-report",
        thoughts="--reasoning-parser kimi_k3",
        tools="--tool-call-parser kimi_k3",
    ),
)
