"""OpenRouter, by its documentation and the schema in its Python package openrouter 1.3.84."""

from backends.contract import Contract
from backends.dialect import Dialect

DIALECT = Dialect(
    name="openrouter",
    base_url="https://openrouter.ai/api/v1",
    key_variable="OPENROUTER_API_KEY",
    models={"kimi-k3.1-pro": "moonshotai/kimi-k3.1-pro"},
    # `reasoning_details` go back unmodified and in order; `reasoning` serves where there are none, and
    # `reasoning_content` is only its alias (openrouter.ai/docs/use-cases/reasoning-tokens).
    thought_in=("reasoning",),
    keeps_thought_details=True,
    # The top-level reasoning_effort is a shorthand, and an error where it contradicts this one.
    effort_path=("reasoning", "effort"),
    own_fields=frozenset(
        {
            "cache_control",
            "debug",
            "image_config",
            "include_reasoning",
            "min_p",
            "models",
            "plugins",
            "provider",
            "reasoning",
            "repetition_penalty",
            "route",
            "session_id",
            "top_a",
            "top_k",
            "trace",
            "transforms",
            "usage",
        }
    ),
    # Sticky routing for the cache, up to 256 characters (docs, prompt caching).
    conversation_field="session_id",
    # Its host for this model is Moonshot's own endpoint, which refuses a named function while thinking (a public
    # report on K3, enricoros/big-AGI#1161); `required` with the one tool means the same everywhere.
    named_tool_choice=False,
    # That host's rules for messages and names; `stop` is OpenRouter's own (docs, parameters).
    contract=Contract(
        refuses_empty=True,
        pairs_calls=True,
        declared_tools=True,
        tool_name=r"[a-zA-Z_][a-zA-Z0-9_-]{0,127}",
        choices_with_tools=frozenset({"required"}),
        max_stops=4,
    ),
    # `cost` is what is charged, in credits of one US dollar; with is_byok the provider bills the operator besides.
    reports_cost=True,
    seller="openrouter",
)
