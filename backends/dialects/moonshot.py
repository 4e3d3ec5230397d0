"""api.moonshot.ai: the dialect the gateway itself speaks to clients."""

from backends.dialect import Dialect

DIALECT = Dialect(
    name="moonshot",
    base_url="https://api.moonshot.ai/v1",
    key_variable="MOONSHOT_API_KEY",
    models={
        "kimi-k3.1-pro": "kimi-k3.1-pro",
        "kimi-k3.1-pro-highspeed": "kimi-k3.1-pro-highspeed",
    },
    # "invalid temperature: only 1 is allowed for this model"; some relays refuse even the value allowed, so
    # the fields are always left out (platform.kimi.ai/docs/api/chat, and the public reports in case par-01).
    fixed={"temperature": 1, "top_p": 0.95, "presence_penalty": 0, "frequency_penalty": 0, "n": 1},
    max_n=1,
    own_fields=frozenset({"prompt_cache_options"}),
    named_tool_choice=False,
    remote_images=False,
    file_urls=True,
    # What the AI SDK's provider sends there (3.0.60, src): everything else was seen refused.
    media_types=frozenset(
        {f"image/{kind}" for kind in ("jpeg", "jpg", "png", "gif", "webp", "bmp", "heic", "heif")}
        | {
            f"video/{kind}"
            for kind in ("mp4", "mpeg", "mov", "quicktime", "avi", "x-flv", "mpg", "webm", "wmv", "3gpp")
        }
    ),
    schema_flavour="moonshot",
    cache_options=True,
    # usage.cached_tokens is documented; where it is missing nothing was cached (case use-02).
    absent_cached_is_zero=True,
    seller="moonshot",
    # api.moonshot.cn bills in CNY (platform.kimi.com).
    other_currency_suffixes=(".cn",),
)
