"""Each kind of fault of the emulator, in each dialect, streamed and folded: the client's error and the row."""

import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from backends.emulator.faults import KINDS
from backends.emulator.profiles import PROFILES
from pricing.ledger.row import LedgerRow
from support.lab import Heard, heal, ledger_url, post, wait_for_row
from support.processes import BASE_URL, Gateway, gateway_process, program

OPTIONS = {
    "refuse": "for_s = 0.2",
    "stall": 'phase = "text"\nfor_s = 0.3',
    "hold": 'phase = "finish"',
    "slow": "bytes = 400\ngap_ms = 1",
    "context": 'over = "prompt"',
}
PRICES = 'prices = { input = "2.00", cache_read = "0.20", output = "10.00" }\n'
REMEMBERED = ("overloaded", "rate_limited", "unauthorized", "forbidden", "queue_full", "quota")
"""Faults after which a target is left alone for a while."""
ALONE = {"refuse", *REMEMBERED}
CONFIG = """
[server]
drain_grace_s = 0
[retry]
max_retries = 0
breaker_failures = 1000000
[timing]
usage_grace_s = 0.3
quota_out_s = 0
"""


@dataclass(frozen=True)
class Expected:
    """What may be heard: HTTP statuses or error types, and the statuses of the row. No types: a whole answer."""

    rows: tuple[str, ...]
    types: tuple[str, ...] = ()
    statuses: tuple[int, ...] = (502,)


WHOLE = Expected(("ok",))
BROKEN = Expected(("error", "incomplete"), ("upstream_error",))
TABLE: dict[str, Expected] = {
    "refuse": BROKEN,
    "reset": BROKEN,
    "cut": BROKEN,
    "stall": WHOLE,
    "hold": WHOLE,
    "silence": Expected(("error",), ("upstream_timeout",), (504,)),
    # vLLM says so; the others are silent for longer than the idle limit here, or close without a word.
    "crash": Expected(("error", "incomplete"), ("upstream_error", "upstream_timeout"), (502, 504)),
    "slow": WHOLE,
    "split": WHOLE,
    # A limit keeps the upstream's own type.
    "overloaded": Expected(
        ("error",),
        ("engine_overloaded_error", "provider_overloaded", "Too Many Requests", "upstream_error"),
        (429, 502),
    ),
    "rate_limited": Expected(
        ("error",), ("rate_limit_reached_error", "rate_limit_exceeded", "Too Many Requests"), (429,)
    ),
    "quota": Expected(("error",), ("exceeded_current_quota_error",), (402,)),
    "unauthorized": Expected(("error",), ("upstream_error",)),
    "forbidden": Expected(("error",), ("upstream_error",)),
    "content_filter": Expected(("error",), ("content_filter",), (400,)),
    "context": Expected(("error",), ("invalid_request_error",), (400,)),
    "http_error": BROKEN,
    "error_200": BROKEN,
    "queue_full": BROKEN,
    "html": BROKEN,
    "error_event": BROKEN,
    "no_finish": BROKEN,
    "no_done": WHOLE,
    "finish": BROKEN,
    "usage": WHOLE,
    "malformed": BROKEN,
}


def fault_file() -> str:
    """One rule for each kind, for requests whose text names it."""
    return "\n".join(
        f'[[faults]]\nkind = "{kind}"\ncontains = "fault {kind} now"\n{OPTIONS.get(kind, "")}' for kind in KINDS
    )


@pytest.fixture(scope="module")
def faulty() -> Iterator[Gateway]:
    """A gateway without retries before an emulator of each dialect that misbehaves on demand."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kimi-test-")))
        (folder / "faults.toml").write_text(fault_file(), "utf-8")
        config = [CONFIG]
        for name in PROFILES:
            command = [sys.executable, "-m", "kimi_gateway", "emulate", "--dialect", name, "--port", "0"]
            command += ["--pace", "0", "--faults", str(folder / "faults.toml")]
            emulator = stack.enter_context(program(command, ready=BASE_URL))
            address = emulator.wait_for_line(BASE_URL).group()
            upstream = {"moonshot": "kimi-k3.1-pro", "openrouter": "moonshotai/kimi-k3.1-pro"}
            model = upstream.get(name, "moonshotai/Kimi-K3.1-Pro")
            config.append(
                f'[[targets]]\nname = "{name}"\ndialect = "{name}"\nbase_url = "{address}"\nidle_timeout_s = 1\n'
                f'first_byte_timeout_s = 1\napi_key_env = "KEY"\nmodels = {{ "kimi-k3.1-pro" = "{model}" }}\n'
                + ("" if name in upstream else PRICES)
            )
        yield stack.enter_context(gateway_process("\n".join(config), {"KEY": "sk-faulty"}))


Case: TypeAlias = tuple[str, str, bool]  # kind, dialect, streamed or not


@pytest.fixture(scope="module")
def told(faulty: Gateway) -> dict[Case, tuple[Heard, LedgerRow]]:
    """What client and ledger say of each case. A fault that keeps a target from other requests comes alone."""
    cases = list(product(sorted(KINDS), sorted(PROFILES), (True, False)))
    answers = {case: ask(faulty, case) for case in cases if case[0] in ALONE}
    together = [case for case in cases if case[0] not in ALONE]
    with ThreadPoolExecutor(8) as pool:
        answers |= zip(together, pool.map(lambda case: ask(faulty, case), together), strict=True)
    url = ledger_url(faulty)
    return {
        case: (heard, wait_for_row(url, heard.headers["x-kimi-request-id"])) for case, heard in answers.items()
    }


def ask(gateway: Gateway, case: Case) -> Heard:
    kind, dialect, stream = case
    request: dict[str, Any] = {
        "model": "kimi-k3.1-pro",
        "reasoning_effort": "low",
        "stream": stream,
        "messages": [{"role": "user", "content": f"fault {kind} now"}],
    }
    heard = post(gateway.base_url, request, {"x-kimi-target": dialect})
    if kind in REMEMBERED:
        heal(gateway)
    return heard


def test_every_kind_has_its_expectation() -> None:
    assert set(TABLE) == set(KINDS)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("dialect", sorted(PROFILES))
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_fault_is_an_honest_error_with_one_row(
    told: dict[Case, tuple[Heard, LedgerRow]], kind: str, dialect: str, stream: bool
) -> None:
    expected = TABLE[kind]
    heard, row = told[kind, dialect, stream]
    assert row.status in expected.rows
    assert len(row.attempts) == 1
    if not expected.types:
        assert heard.status == 200
        assert heard.error is None
        assert heard.finish_reason() == "stop" if stream else heard.json["choices"][0]["finish_reason"] == "stop"
        assert heard.done is stream
        assert row.cost_nano
        return
    assert heard.error is not None
    assert heard.error["type"] in expected.types
    assert set(heard.error) - {"status"} == {"message", "type", "param", "code"}
    assert (heard.error.get("status") or heard.status) in expected.statuses
    assert not heard.done
    assert (row.error_type, row.message) == (heard.error["type"], heard.error["message"])
    delivered = heard.joined("content") + heard.joined("reasoning_content") if stream else ""
    if delivered:
        assert row.estimated or row.raw_usage is not None
        assert row.cost_nano
