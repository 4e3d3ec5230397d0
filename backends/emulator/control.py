"""`/emulator/…` and `/health`: for whoever runs or tests with it. No key is asked for: serve it on loopback."""

from collections.abc import Mapping
from decimal import Decimal

from backends.emulator.errors import Refusal, invalid
from backends.emulator.fault_file import FaultFileError, read_fault_file
from backends.emulator.faults import FaultPlan
from backends.emulator.state import State
from backends.json import JsonError, as_object, decode

PATHS = frozenset(
    {
        "/health",
        "/emulator/invoice",
        "/emulator/requests",
        "/emulator/clock",
        "/emulator/faults",
        "/emulator/reset",
    }
)


def control(state: State, method: str, path: str, query: Mapping[str, str], body: bytes) -> dict[str, object]:
    """The answer to one control request. Raises `Refusal` for a wrong method or value."""
    match method, path:
        case ("GET", "/health"):
            return {"status": "ok", "service": "kimi-emulator", "dialect": state.profile.name}
        case ("GET", "/emulator/invoice"):
            return {**state.invoice.shown()}
        case ("GET", "/emulator/requests"):
            shown = state.seen.shown(raw=query.get("raw") == "1")
            if query.get("clear") == "1":
                state.seen.clear()
            return shown
        case ("GET", "/emulator/clock"):
            return {"now_s": state.clock.now_s()}
        case ("POST", "/emulator/clock"):
            return _advance(state, body)
        case ("GET", "/emulator/faults"):
            return {"rules": state.faults.shown() if isinstance(state.faults, FaultPlan) else []}
        case ("POST", "/emulator/faults"):
            return _new_faults(state, body)
        case ("POST", "/emulator/reset"):
            state.reset()
            return {"reset": True}
        case _:
            raise Refusal(f"{path} does not take {method}", status=405)


def _new_faults(state: State, body: bytes) -> dict[str, object]:
    """Puts the rules of a fault file in the place of those there are; an empty body takes them away."""
    try:
        file = read_fault_file(body.decode())
    except (FaultFileError, UnicodeDecodeError) as err:
        raise invalid(f"the body is not a fault file: {err}") from err
    if file.limits is not None or file.service:
        raise invalid("only seed and [[faults]] can be changed while it runs; [limits] and [service] cannot")
    plan = file.plan(state.config.seed)
    state.faults = plan if file.rules else None
    return {"rules": plan.shown()}


def _advance(state: State, body: bytes) -> dict[str, object]:
    try:
        step = (as_object(decode(body)) or {}).get("advance_s")
    except JsonError as err:
        raise invalid(f"the body is not JSON: {err}") from err
    if isinstance(step, bool) or not isinstance(step, int | Decimal) or not 0 <= step < 10**9:
        raise invalid('the body must be {"advance_s": seconds}, zero or more')
    state.clock.advance(float(step))
    return {"now_s": state.clock.now_s()}
