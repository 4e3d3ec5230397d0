"""Every kind of fault in every dialect, heard byte by byte: what ends how, and what is charged for it."""

import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from backends.emulator.app import Emulator, EmulatorConfig
from backends.emulator.fault_file import read_fault_file
from backends.emulator.faults import KINDS
from backends.emulator.profiles import PROFILES
from support.asgi import serve
from support.misbehaving import Heard, Upstream, misbehaving

SIZED = [{"role": "user", "content": '[[emulator {"thought_tokens": 40, "text_tokens": 40}]]'}]
MODELS = {name: profile.models[0].id for name, profile in PROFILES.items()}
QUICK = {  # options that keep the sweep short
    "refuse": "for_s = 0.05",
    "stall": "for_s = 0.05",
    "crash": "after_s = 0.05",
    "slow": "bytes = 4000\ngap_ms = 0.1",
    "split": "gap_ms = 0.1",
    "malformed": 'form = "not_json"',
}
# How each kind ends a stream, and what of it is charged: everything, a part (less than everything), or nothing.
STREAMED = {
    "refuse": ("reset", 0, "nothing"),
    "reset": ("reset", 0, "nothing"),
    "cut": ("closed", 200, "part"),
    "stall": ("closed", 200, "all"),
    "hold": ("open", 200, "all"),
    "silence": ("open", 200, "part"),
    "crash": ("closed", 200, "part"),
    "slow": ("closed", 200, "all"),
    "split": ("closed", 200, "all"),
    "overloaded": ("closed", 429, "nothing"),
    "rate_limited": ("closed", 429, "nothing"),
    "quota": ("closed", None, "nothing"),
    "unauthorized": ("closed", 401, "nothing"),
    "forbidden": ("closed", 403, "nothing"),
    "content_filter": ("closed", None, "nothing"),
    "context": ("closed", 400, "nothing"),
    "http_error": ("closed", 500, "nothing"),
    "error_200": ("closed", 200, "nothing"),
    "queue_full": ("closed", 200, "nothing"),
    "html": ("closed", 502, "nothing"),
    "error_event": ("closed", 200, "part"),
    "no_finish": ("closed", 200, "all"),
    "no_done": ("closed", 200, "all"),
    "finish": ("closed", 200, "all"),
    "usage": ("closed", 200, "all"),
    "malformed": ("closed", 200, "all"),
}


@pytest.fixture(scope="module", params=list(PROFILES))
def upstream(request: pytest.FixtureRequest) -> Iterator[tuple[str, Upstream]]:
    with misbehaving(dialect=request.param) as held:
        yield request.param, held


def suffer(upstream: tuple[str, Upstream], kind: str, options: str = "", **fields: Any) -> Heard:
    """The answer to one request that suffers this fault."""
    dialect, held = upstream
    held.control("/emulator/faults", f'[[faults]]\nkind = "{kind}"\n{options}\n')
    heard = held.ask(**{"model": MODELS[dialect], "messages": SIZED, "listen_s": 0.25, **fields})
    held.control("/emulator/faults", "")
    return heard


def answered(upstream: tuple[str, Upstream], **fields: Any) -> Heard:
    """The answer to the same request without a fault."""
    dialect, held = upstream
    return held.ask(**{"model": MODELS[dialect], "messages": SIZED, **fields})


def charged(upstream: tuple[str, Upstream], before: int) -> str:
    """What the invoice says of the requests since it had so many lines."""
    lines = upstream[1].lines()[before:]
    if not lines:
        return "nothing"
    (line,) = lines
    return "all" if line["output"] == 80 else "part"


def test_the_table_here_has_every_kind() -> None:
    assert STREAMED.keys() == KINDS.keys()


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_kind_ends_a_stream_and_is_charged_as_documented(upstream: tuple[str, Upstream], kind: str) -> None:
    end, status, charge = STREAMED[kind]
    lines = len(upstream[1].lines())
    options = {"include_usage": True}
    heard = suffer(upstream, kind, QUICK.get(kind, ""), stream=True, stream_options=options)
    assert heard.end == end
    if status is not None:
        assert heard.status == status
    assert charged(upstream, lines) == charge
    assert upstream[1].fault_names()[-1] == kind


@pytest.mark.parametrize("kind", list(KINDS))
def test_each_kind_fits_an_unstreamed_answer_or_passes_it_by(upstream: tuple[str, Upstream], kind: str) -> None:
    heard = suffer(upstream, kind, QUICK.get(kind, ""))
    streams_only = {"split", "error_event", "no_finish", "no_done", "malformed"}
    applied = upstream[1].fault_names()[-1]
    if kind in streams_only:
        assert (applied, heard.status, heard.is_whole) == ("", 200, True)
    else:
        assert applied == kind


def test_a_fault_that_needs_a_hold_on_the_connection_says_so_where_there_is_none() -> None:
    plan = read_fault_file('[[faults]]\nkind = "reset"').plan(0)
    with serve(Emulator(EmulatorConfig(pace=0, faults=plan))) as url:
        heard = Upstream(int(url.rpartition(":")[2])).ask()
    assert heard.status == 501
    assert "kimi-gateway emulate" in heard.json["error"]["message"]


# --- connections ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["reset", "cut"])
def test_a_connection_breaks_where_it_is_told_to(upstream: tuple[str, Upstream], kind: str, stream: bool) -> None:
    whole = answered(upstream, stream=stream)
    sizes = []
    for phase in ("start", "head", "role", "thought", "text", "finish", "usage"):
        heard = suffer(upstream, kind, f'phase = "{phase}"', stream=stream)
        assert heard.end == {"reset": "reset", "cut": "closed"}[kind]
        assert (heard.status, heard.is_whole) == (0 if phase == "start" else 200, False)
        sizes.append(len(heard.body))
    assert sizes[:2] == [0, 0]
    if stream:
        assert sizes == sorted(sizes)
        assert len(set(sizes[1:6])) == 5
    assert 0 < sizes[-1] <= len(whole.body)


def test_nothing_is_charged_before_the_first_token_and_then_what_was_generated() -> None:
    with misbehaving() as held:
        outputs = []
        for phase in ("start", "head", "role", "thought", "text", "finish"):
            lines = len(held.lines())
            suffer(("moonshot", held), "cut", f'phase = "{phase}"', stream=True)
            outputs.append([line["output"] for line in held.lines()[lines:]])
    assert outputs == [[], [], [], [20], [60], [80]]


def test_a_refusing_port_refuses_for_its_time_and_then_answers() -> None:
    rule = '[[faults]]\nkind = "refuse"\nfor_s = 0.4\nrequests = [1]\n'
    with misbehaving(rule) as held:
        begun_s = time.monotonic()
        assert held.ask().end == "reset"
        assert held.ask().end == "refused"
        while held.ask().end == "refused":
            assert time.monotonic() - begun_s < 5
            time.sleep(0.02)
        assert time.monotonic() - begun_s >= 0.4
        assert held.ask().status == 200


def test_a_port_can_close_after_an_answer() -> None:
    with misbehaving('[[faults]]\nkind = "refuse"\nfor_s = 0.2\nanswer = true\nrequests = [1]\n') as held:
        assert held.ask().is_whole
        assert held.ask().end == "refused"


def test_two_refusals_add_up_to_the_later_end() -> None:
    rules = "".join(
        f'[[faults]]\nkind = "refuse"\nfor_s = {seconds}\nrequests = [{number}]\nanswer = true\n'
        for number, seconds in ((1, 0.5), (2, 0.1))
    )
    with misbehaving(rules, min_duration_s=0.1) as held:
        begun_s = time.monotonic()
        others = [threading.Thread(target=held.ask) for _ in range(2)]
        for other in others:
            other.start()
        for other in others:
            other.join()
        while held.ask(listen_s=5).end == "refused":
            time.sleep(0.02)
        assert 0.5 <= time.monotonic() - begun_s < 3


@pytest.mark.parametrize("phase", ["start", "head", "thought", "finish", "done"])
def test_a_stall_is_silence_of_its_length_and_then_the_rest(upstream: tuple[str, Upstream], phase: str) -> None:
    heard = suffer(upstream, "stall", f'phase = "{phase}"\nfor_s = 0.3', stream=True, listen_s=2)
    assert heard.is_whole
    assert heard.events[-1] == "[DONE]"
    moments = [moment for moment, _ in heard.writes]
    gaps = [later - earlier for earlier, later in pairwise(moments)]
    if phase == "start":
        assert not gaps or max(gaps) < 0.3
    else:
        assert 0.25 < max(gaps) < 2


def test_a_stall_may_send_comments(upstream: tuple[str, Upstream]) -> None:
    options = 'phase = "thought"\nfor_s = 0.3\ncomment_every_s = 0.1'
    heard = suffer(upstream, "stall", options, stream=True, listen_s=2)
    comment = PROFILES[upstream[0]].comment
    assert heard.body.count(comment) >= 2
    assert heard.is_whole


@pytest.mark.parametrize("phase", ["finish", "usage", "done"])
def test_a_held_answer_has_said_everything_but_its_end(upstream: tuple[str, Upstream], phase: str) -> None:
    options = {"include_usage": True}
    heard = suffer(upstream, "hold", f'phase = "{phase}"', stream=True, stream_options=options)
    assert (heard.end, heard.is_whole) == ("open", False)
    chunks = [event for event in heard.events if event != "[DONE]"]
    assert any(choice["finish_reason"] for chunk in chunks for choice in chunk["choices"])
    has_usage = any(holder.get("usage") for chunk in chunks for holder in (chunk, *chunk["choices"]))
    assert has_usage if phase != "finish" or upstream[0] == "moonshot" else not has_usage
    assert (heard.events[-1] == "[DONE]") is (phase == "done")


def test_a_stopped_engine_says_nothing_and_refuses_others() -> None:
    rule = '[[faults]]\nkind = "silence"\nrefuse_s = 5.0\nrequests = [1]\n'
    with misbehaving(rule, dialect="vllm") as held:
        heard = held.ask(stream=True, listen_s=0.3)
        assert heard.end == "open"
        assert "data: [DONE]" not in heard.body.decode()
        assert held.ask().end == "refused"


def test_a_crash_looks_as_recorded() -> None:
    with misbehaving(dialect="vllm") as held:
        heard = suffer(("vllm", held), "crash", stream=True)
        plain = suffer(("vllm", held), "crash")
    assert heard.is_whole
    error = {
        "message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
        "type": "InternalServerError",
        "param": None,
        "code": 500,
    }
    assert heard.events[-2:] == [{"error": error}, "[DONE]"]
    assert (plain.status, plain.json) == (500, {"error": error})
    with misbehaving(dialect="sglang") as held:
        begun_s = time.monotonic()
        heard = suffer(("sglang", held), "crash", "after_s = 0.3", stream=True, listen_s=2)
    assert (heard.end, heard.is_whole) == ("closed", False)
    assert time.monotonic() - begun_s >= 0.3
    assert "error" not in heard.body.decode()


def test_a_slow_answer_is_the_same_answer(upstream: tuple[str, Upstream]) -> None:
    heard = suffer(upstream, "slow", "bytes = 700\ngap_ms = 5", stream=True)
    assert heard.is_whole
    assert heard.text == answered(upstream, stream=True).text
    assert len(heard.writes) >= len(heard.body) // 700
    unstreamed = suffer(upstream, "slow", "bytes = 50\ngap_ms = 1")
    assert unstreamed.is_whole
    assert unstreamed.json["usage"]["completion_tokens"] == 80


@pytest.mark.parametrize("at", ["character", "line_end", "byte"])
@pytest.mark.parametrize("line_end", ["lf", "crlf", "cr"])
def test_writes_can_end_in_bad_places(upstream: tuple[str, Upstream], at: str, line_end: str) -> None:
    asked = [{"role": "user", "content": "你好 😀"}]
    options = f'at = "{at}"\nline_end = "{line_end}"\ngap_ms = 0.1'
    limit = 3 if at == "byte" else 1_000
    heard = suffer(upstream, "split", options, messages=asked, stream=True, max_completion_tokens=limit)
    assert heard.is_whole
    end = {"lf": b"\n", "crlf": b"\r\n", "cr": b"\r"}[line_end]
    assert heard.body.endswith(b"data: [DONE]" + end * 2)
    pieces = chunked(heard)
    if at == "byte":
        assert {len(piece) for piece in pieces} == {1}
    elif at == "character":
        joined = b"".join(pieces)
        starts = [sum(map(len, pieces[:number])) for number in range(1, len(pieces))]
        assert any(joined[start] & 0xC0 == 0x80 for start in starts)
    else:
        assert any(piece.startswith(end[-1:]) for piece in pieces)


def chunked(heard: Heard) -> list[bytes]:
    """The body's pieces as the server wrote them: the chunks of its framing."""
    data = heard.raw.partition(b"\r\n\r\n")[2]
    pieces = []
    while data:
        size, _, data = data.partition(b"\r\n")
        count = int(size, 16)
        pieces.append(data[:count])
        data = data[count + 2 :]
    return [piece for piece in pieces if piece]
