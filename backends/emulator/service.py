"""The small endpoints of the services: models, token estimate, balance, tokenizer, load."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from backends.emulator.chat import read_object, wanted_model
from backends.emulator.engine_metrics import loads, metrics, server_load
from backends.emulator.errors import invalid
from backends.emulator.parse_messages import parse_messages, parse_tools
from backends.emulator.profile import Facility
from backends.emulator.prompt import Prompt, encode_messages, encode_text
from backends.emulator.request import text_field
from backends.emulator.state import State
from backends.emulator.tokens import BYTES_PER_TOKEN
from backends.json import Json, JsonObject

MODELS_PATH: Final = "/v1/models"
_MODEL_PREFIX: Final = "/v1/models/"
_VOCABULARY: Final = 163_584  # K3's ordinary tokens


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A small endpoint; `answer` gets the state and the request's body, and gives JSON, or bytes that are text."""

    method: str
    answer: Callable[[State, bytes], Json | bytes]
    facility: Facility | None = None  # None: every dialect has it


def endpoint(state: State, path: str) -> Endpoint | None:
    """The endpoint of the emulated service at a path, None where it has none."""
    if path.startswith(_MODEL_PREFIX):
        return Endpoint("GET", lambda state, body: one_model(state, path.removeprefix(_MODEL_PREFIX)))
    if path == "/metrics" and state.profile.metrics is not None:
        return Endpoint("GET", lambda state, body: metrics(state))
    found = ENDPOINTS.get(path)
    if found is None or (found.facility is not None and found.facility not in state.profile.facilities):
        return None
    return found


def model_list(state: State) -> JsonObject:
    """`GET /v1/models`."""
    entry = state.profile.list_entry
    return {"object": "list", "data": [entry(model, state.window_tokens) for model in state.profile.models]}


def one_model(state: State, id: str) -> JsonObject:
    """`GET /v1/models/{id}`. Raises `Refusal` (404)."""
    return state.profile.list_entry(wanted_model(state, {"model": id}), state.window_tokens)


def estimate(state: State, body: bytes) -> JsonObject:
    """`POST /v1/tokenizers/estimate-token-count`: messages only, tools are not in its schema. Raises `Refusal`."""
    request = read_object(body)
    wanted_model(state, request)
    prompt = encode_messages(parse_messages(request, state.profile), state.profile)
    return {"data": {"total_tokens": prompt.tokens}}


def balance(state: State) -> JsonObject:
    """`GET /v1/users/me/balance`: Moonshot's account, in exact dollars."""
    left = state.balance
    return {
        "code": 0,
        "data": {"available_balance": left, "voucher_balance": 0, "cash_balance": left},
        "scode": "0x0",
        "status": True,
    }


def credits(state: State) -> JsonObject:
    """`GET /v1/credits`: OpenRouter's account, in credits of one dollar."""
    return {"data": {"total_credits": Decimal(state.config.balance_usd), "total_usage": state.spent_usd}}


def tokenize(state: State, body: bytes) -> JsonObject:
    """`POST /tokenize` of an engine: `prompt`, or `messages` with `tools`. Raises `Refusal`."""
    request = read_object(body)
    text = text_field(request, "prompt", "prompt")
    if text is None and "messages" not in request:
        raise invalid("either prompt or messages is needed", param="prompt")
    if text is not None:
        prompt = encode_text(text)
    else:
        tools = parse_tools(request, "tools")
        prompt = encode_messages(parse_messages(request, state.profile), state.profile, tools)
    counted: JsonObject = {"count": prompt.tokens, "max_model_len": state.window_tokens}
    counted["tokens"] = _token_ids(prompt)
    return {**counted, "token_strs": None} if state.profile.token_strings else counted


def server_info(state: State) -> JsonObject:
    """`GET /server_info` of SGLang: a few of the arguments it was started with, and its version."""
    model = state.profile.models[0].id
    return {
        "model_path": model,
        "served_model_name": model,
        "context_length": state.window_tokens,
        "internal_states": [],
        "version": state.profile.version,
    }


def _token_ids(prompt: Prompt) -> list[Json]:
    """Numbers that stand for the emulator's own tokens, within the vocabulary."""
    steps = range(0, len(prompt.data), BYTES_PER_TOKEN)
    return [int.from_bytes(prompt.data[at : at + BYTES_PER_TOKEN], "big") % _VOCABULARY for at in steps]


ENDPOINTS: Final[Mapping[str, Endpoint]] = {
    MODELS_PATH: Endpoint("GET", lambda state, body: model_list(state)),
    "/v1/tokenizers/estimate-token-count": Endpoint("POST", estimate, "estimate"),
    "/v1/users/me/balance": Endpoint("GET", lambda state, body: balance(state), "balance"),
    "/v1/credits": Endpoint("GET", lambda state, body: credits(state), "credits"),
    "/tokenize": Endpoint("POST", tokenize, "tokenize"),
    "/version": Endpoint("GET", lambda state, body: {"version": state.profile.version}, "version"),
    "/server_info": Endpoint("GET", lambda state, body: server_info(state), "server_info"),
    "/get_server_info": Endpoint("GET", lambda state, body: server_info(state), "server_info"),
    "/load": Endpoint("GET", lambda state, body: server_load(state), "load"),
    "/v1/loads": Endpoint("GET", lambda state, body: loads(state), "loads"),
    "/": Endpoint("GET", lambda state, body: "SGLang is running", "banner"),
}
