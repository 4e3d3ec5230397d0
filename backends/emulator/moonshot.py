"""api.moonshot.ai: the facts and the words of the Kimi platform's chat API."""

from decimal import Decimal

from backends.emulator import contract
from backends.emulator.errors import Refusal, invalid
from backends.emulator.prices import sheet
from backends.emulator.profile import Model, Profile, Words
from backends.json import JsonObject

_RELEASED_S = 1_792_800_000  # 2026-10-24, the day both models were announced


def _error_body(refusal: Refusal) -> JsonObject:
    # No code and no param: the documented body has these two fields (platform.kimi.ai/docs/api/errors).
    return {"error": {"message": refusal.message, "type": refusal.type}}


def _unknown_path(method: str, path: str) -> JsonObject:
    # Seen live: another shape than every other error.
    return {
        "code": 5,
        "error": "url.not_found",
        "message": f"no such address: {path}",
        "method": method,
        "scode": "0x5",
        "status": False,
    }


def _unknown_model(model: str) -> Refusal:
    return Refusal(
        f"Not found the model {model} or Permission denied",
        status=404,
        type="resource_not_found_error",
        param="model",
    )


def _wrong_key(key: str) -> Refusal:
    # Seen live on /v1/models: without a key the type is another one than with a wrong key.
    if not key:
        return Refusal("Incorrect API key provided", status=401, type="incorrect_api_key_error")
    return Refusal("Invalid Authentication", status=401, type="invalid_authentication_error")


def _too_long(prompt_tokens: int, limit_tokens: int, window_tokens: int) -> Refusal:
    if limit_tokens == 0:
        return Refusal("Input token length too long", param="messages")
    return invalid(
        f"Your request exceeded model token limit : {window_tokens} (requested: {prompt_tokens + limit_tokens})",
        param="max_completion_tokens",
    )


_IMAGES = tuple(f"image/{kind}" for kind in ("jpeg", "png", "gif", "webp", "bmp", "heic", "heif"))
_VIDEOS = tuple(
    f"video/{kind}"
    for kind in (
        "mp4",
        "mpeg",
        "mpg",
        "mov",
        "quicktime",
        "avi",
        "x-msvideo",
        "x-flv",
        "webm",
        "wmv",
        "x-ms-wmv",
        "3gpp",
    )
)

MOONSHOT = Profile(
    name="moonshot",
    # Input, cached read and output of Pro: official pages; the cache columns of Highspeed: two second-hand tables.
    models=(
        Model(
            id="kimi-k3.1-pro",
            tier="standard",
            created_s=_RELEASED_S,
            prices=sheet(input="2.00", cache_read="0.20", write_5m="2.00", write_1h="4.00", output="10.00"),
        ),
        Model(
            id="kimi-k3.1-pro-highspeed",
            tier="highspeed",
            created_s=_RELEASED_S,
            prices=sheet(input="4.00", cache_read="0.20", write_5m="4.00", write_1h="8.00", output="20.00"),
        ),
    ),
    words=Words(
        error_body=_error_body,
        unknown_path=_unknown_path,
        wrong_key=_wrong_key,
        too_large=lambda: Refusal("Request exceeds the maximum size", status=413),
        unknown_model=_unknown_model,
        too_long=_too_long,
    ),
    owned_by="moonshot",
    context_tokens=1_048_576,
    default_limit_tokens=131_072,
    block_tokens=256,  # probes show multiples of 256; no text states it
    image_tokens=1_024,  # said of older vision models; unknown for K3.1
    efforts=("low", "high", "max"),
    default_effort="max",
    thought_in=("reasoning_content",),
    thought_out=("reasoning_content",),
    checks=(
        contract.check_sampling,
        contract.check_roles,
        contract.check_breakpoints,
        contract.check_contents,
        contract.check_media,
        contract.check_partial,
        contract.check_tools,
        contract.check_dynamic_tools,
        contract.check_tool_choice,
        contract.check_tool_history,
        contract.check_stop,
    ),
    fixed={
        "temperature": Decimal("1"),
        "top_p": Decimal("0.95"),
        "n": Decimal("1"),
        "presence_penalty": Decimal("0"),
        "frequency_penalty": Decimal("0"),
    },
    # The later of two published rules (September 2026); the August one wants 3 to 64 characters.
    tool_name_pattern=r"[a-zA-Z_][a-zA-Z0-9_-]{0,127}",
    tool_kinds=("function", "builtin_function"),
    max_stops=5,
    max_stop_bytes=32,
    media_types={"image_url": _IMAGES, "video_url": _VIDEOS},
    file_scheme="ms://",
    usage_places=("choice", "extra"),
    reports_writes=True,
    ttl_headers=True,
)
