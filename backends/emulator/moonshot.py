"""api.moonshot.ai: the facts and the words of the Kimi platform's chat API."""

from decimal import Decimal
from typing import Final

from backends.emulator import contract
from backends.emulator.errors import Refusal, invalid
from backends.emulator.flavour import check_schemas
from backends.emulator.prices import sheet
from backends.emulator.profile import Model, Profile, Trouble, Words
from backends.emulator.shape import Shape
from backends.emulator.thinking import moonshot_thinking
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


def _unknown_model(model: str, known: tuple[str, ...]) -> Refusal:
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


def _trouble(trouble: Trouble) -> Refusal:
    """The platform's list of errors (platform.kimi.ai/docs/api/errors), with the ids that it puts into them."""
    who = f"Your account {trouble.account}<{trouble.key}>"
    match trouble.kind:
        case "overloaded":
            text = "The engine is currently overloaded, please try again later"
            return Refusal(text, status=trouble.status or 429, type="engine_overloaded_error")
        case "rate":
            return Refusal(f"{who} {_limit_text(trouble)}", status=429, type="rate_limit_reached_error")
        case "quota":
            # The errors page says 429, a help page of the same vendor 403.
            text = f"{who} is suspended, please check your plan and billing details"
            return Refusal(text, status=trouble.status or 429, type="exceeded_current_quota_error")
        case "forbidden":
            text = "The API you are accessing is not open"
            return Refusal(text, status=trouble.status or 403, type="permission_denied_error")
        case "filter":
            text = "The request was rejected because it was considered high risk"
            return Refusal(text, status=trouble.status or 400, type="content_filter")
        case "full":
            text = "The server is currently unavailable, please try again later"
            return Refusal(text, status=trouble.status or 503, type="server_unavailable")
        case "crash":
            return Refusal("invalid state transition", status=500, type="unexpected_output")
        case "server":
            status = trouble.status or 500
            return Refusal(
                _SERVER_TEXTS.get(status, "Internal server error"), status=status, type=_type_of(status)
            )


def _limit_text(trouble: Trouble) -> str:
    match trouble.limit:
        case "concurrency":
            reached = f"request reached organization max concurrency: {trouble.most}"
        case "rpm":
            reached = f"request reached organization max RPM: {trouble.most}"
        case name:
            limit = f"organization {name.upper()} rate limit"
            return f"request reached {limit}, current: {trouble.current}, limit: {trouble.most}"
    return f"{reached}, please try again after {trouble.wait_s} seconds"


_SERVER_TEXTS: Final = {413: "Request exceeds the maximum size", 503: "The server is currently unavailable"}


def _type_of(status: int) -> str:
    if status == 404:
        return "resource_not_found_error"
    if status < 500:
        return "invalid_request_error"
    return "server_error" if status == 500 else "server_unavailable"


def _list_entry(model: Model, window_tokens: int) -> JsonObject:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_s,
        "owned_by": "moonshot",
        "context_length": window_tokens,
        "supports_image_in": True,
        "supports_video_in": True,
        "supports_reasoning": True,
    }


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
        # Not documented; the AI SDK's provider reads it so.
        error_event=lambda refusal, head: _error_body(refusal),
        unknown_path=_unknown_path,
        wrong_key=_wrong_key,
        too_large=lambda: Refusal("Request exceeds the maximum size", status=413),
        unknown_model=_unknown_model,
        too_long=_too_long,
        trouble=_trouble,
        no_messages=lambda given: invalid("messages must hold at least one message", param="messages"),
        logprobs_too_many=lambda top, most: invalid(f"top_logprobs must be {most} or less", param="top_logprobs"),
    ),
    shape=Shape(),
    list_entry=_list_entry,
    default_limit_tokens=131_072,
    block_tokens=256,  # probes show multiples of 256; no text states it
    read_thinking=moonshot_thinking,
    checks=(
        contract.check_sampling,
        contract.check_roles,
        contract.check_breakpoints,
        contract.check_contents,
        contract.check_media,
        contract.check_partial,
        contract.check_tools,
        check_schemas,
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
    ttl_headers=True,
    answer_headers=lambda id: ((b"x-trace-id", id.encode()),),
    facilities=frozenset({"estimate", "balance"}),
)
