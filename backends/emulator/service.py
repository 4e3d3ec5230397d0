"""The small endpoints of the service: models, token estimate, balance."""

from decimal import Decimal

from backends.emulator.chat import read_object, wanted_model
from backends.emulator.parse_messages import parse_messages
from backends.emulator.profile import Model
from backends.emulator.prompt import encode_messages
from backends.emulator.state import State
from backends.json import JsonObject

_NANO_DIGITS = 9


def model_list(state: State) -> JsonObject:
    """`GET /v1/models`."""
    return {"object": "list", "data": [_model(state, model) for model in state.profile.models]}


def one_model(state: State, id: str) -> JsonObject:
    """`GET /v1/models/{id}`. Raises `Refusal` (404)."""
    return _model(state, wanted_model(state, {"model": id}))


def estimate(state: State, body: bytes) -> JsonObject:
    """`POST /v1/tokenizers/estimate-token-count`: messages only, tools are not in its schema. Raises `Refusal`."""
    request = read_object(body)
    wanted_model(state, request)
    prompt = encode_messages(parse_messages(request, state.profile.thought_in), state.profile)
    return {"data": {"total_tokens": prompt.tokens}}


def balance(state: State) -> JsonObject:
    """`GET /v1/users/me/balance`: what was there at the start less the invoice, in exact dollars."""
    left = Decimal(state.config.balance_usd) - Decimal(state.invoice.total_nano).scaleb(-_NANO_DIGITS)
    return {
        "code": 0,
        "data": {"available_balance": left, "voucher_balance": 0, "cash_balance": left},
        "scode": "0x0",
        "status": True,
    }


def _model(state: State, model: Model) -> JsonObject:
    return {
        "id": model.id,
        "object": "model",
        "created": model.created_s,
        "owned_by": state.profile.owned_by,
        "context_length": state.window_tokens,
        "supports_image_in": True,
        "supports_video_in": True,
        "supports_reasoning": True,
    }
