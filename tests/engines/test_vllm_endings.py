"""An engine that dies in the middle of an answer: an honest error, never a clean end."""

import os
import signal
import time
from collections.abc import Callable, Iterator

import pytest

from support.behind_vllm import Open, ask, gateway_of, long_stream
from support.lab import Heard, ledger_url, wait_for_row
from support.processes import Gateway
from support.vllm_engine import VllmEngine, vllm_engine

IDLE_S = 4


@pytest.fixture
def mortal() -> Iterator[VllmEngine]:
    """A vLLM of the test's own."""
    with vllm_engine() as started:
        yield started


def kill_the_server(engine: VllmEngine) -> None:
    """The whole of it, as by the kernel when memory runs out."""
    engine.program.kill()


def kill_the_core(engine: VllmEngine) -> None:
    """The process with the model alone: vLLM then ends its streams with an error and the mark of a clean end."""
    os.kill(engine.core_pid(), signal.SIGKILL)


def told_to_stop(engine: VllmEngine) -> None:
    """SIGTERM: without --shutdown-timeout vLLM goes silent, with neither an error nor a close."""
    engine.program.signal(signal.SIGTERM)


@pytest.mark.parametrize("end", [kill_the_server, kill_the_core, told_to_stop])
def test_a_stream_whose_engine_dies_is_an_honest_error(
    mortal: VllmEngine, end: Callable[[VllmEngine], None]
) -> None:
    with gateway_of(mortal, f"idle_timeout_s = {IDLE_S}") as gateway:
        with long_stream(gateway) as stream:
            begun_s = time.monotonic()
            end(mortal)
            found = stream.rest()
        print(f"\n  {end.__name__}: the error came after {time.monotonic() - begun_s:.1f} s: {found.error}")
        _is_honest(found)
        _is_booked(gateway, stream, found)
        folded = ask(gateway)
    assert folded.status in (502, 503, 504), folded.raw
    assert folded.error["type"] == "upstream_error"


def _is_honest(found: Heard) -> None:
    assert found.joined("reasoning_content") or found.joined("content"), "it had begun"
    assert found.error, "no error event"
    assert found.error["type"] in ("upstream_error", "upstream_timeout")
    assert found.error["status"] in (502, 504)
    assert not found.done
    assert b"[DONE]" not in found.raw
    assert found.finish_reason() is None


def _is_booked(gateway: Gateway, stream: Open, found: Heard) -> None:
    row = wait_for_row(ledger_url(gateway), stream.request_id)
    assert row.status in ("error", "incomplete")
    assert row.estimated, "what was delivered is booked, by an estimate"
    assert row.completion_tokens
    assert len(row.attempts) == 1, "no second attempt after content"
