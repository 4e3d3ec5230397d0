"""Faults inside an answer that began well: errors in mid-stream, ends that are missing, usage that cannot be."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from backends.emulator.profiles import PROFILES
from support.misbehaving import Heard, Upstream, misbehaving

MODELS = {name: profile.models[0].id for name, profile in PROFILES.items()}
SIZED = [{"role": "user", "content": '[[emulator {"thought_tokens": 40, "text_tokens": 40}]]'}]


@pytest.fixture(scope="module", params=list(PROFILES))
def upstream(request: pytest.FixtureRequest) -> Iterator[tuple[str, Upstream]]:
    with misbehaving(dialect=request.param, byok_share=0.0) as held:
        yield request.param, held


def suffer(upstream: tuple[str, Upstream], kind: str, options: str = "", **fields: Any) -> Heard:
    """A stream with usage that suffers this fault, unless `fields` say otherwise."""
    dialect, held = upstream
    held.control("/emulator/faults", f'[[faults]]\nkind = "{kind}"\n{options}\n')
    asked = {
        "model": MODELS[dialect],
        "messages": SIZED,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return held.ask(**{**asked, "listen_s": 0.5, **fields})


def well(upstream: tuple[str, Upstream], **fields: Any) -> Heard:
    """The same answer without a fault."""
    dialect, held = upstream
    held.control("/emulator/faults", "")
    asked = {
        "model": MODELS[dialect],
        "messages": SIZED,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    return held.ask(**{**asked, **fields})


def finishes(heard: Heard) -> list[str]:
    return [
        choice["finish_reason"]
        for event in heard.events
        if event != "[DONE]"
        for choice in event.get("choices", ())
        if choice.get("finish_reason")
    ]


def reports(heard: Heard) -> list[Any]:
    """Usage objects in their order, those inside choices included."""
    found = []
    for event in heard.events:
        if event != "[DONE]":
            found += [holder["usage"] for holder in (*event.get("choices", ()), event) if "usage" in holder]
    return [usage for usage in found if usage is not None]


@pytest.mark.parametrize("phase", ["start", "role", "thought", "text", "finish"])
def test_an_error_event_comes_where_it_is_told_to(upstream: tuple[str, Upstream], phase: str) -> None:
    heard = suffer(upstream, "error_event", f'phase = "{phase}"\nmessage = "went away"\nstatus = 503')
    assert (heard.status, heard.is_whole) == (200, True)
    failed = heard.events[-2] if upstream[0] in ("vllm", "sglang") else heard.events[-1]
    assert failed["error"]["message"] == "went away"
    assert upstream[0] == "moonshot" or failed["error"]["code"] == 503
    others = [event for event in heard.events if event != "[DONE]" and "error" not in event]
    assert (len(others) > 0) is (phase != "start")
    assert bool(finishes(heard)) is (phase == "finish" or upstream[0] == "openrouter")


@pytest.mark.parametrize("done", ["true", "false"])
def test_the_end_mark_after_an_error_is_a_choice(upstream: tuple[str, Upstream], done: str) -> None:
    heard = suffer(upstream, "error_event", f"done = {done}")
    assert (heard.events[-1] == "[DONE]") is (done == "true")
    assert heard.is_whole


def test_openrouters_error_stands_in_a_chunk_with_a_finish_reason() -> None:
    with misbehaving(dialect="openrouter") as held:
        failed = suffer(("openrouter", held), "error_event").events[-1]
    assert failed["object"] == "chat.completion.chunk"
    assert failed["provider"] == "Moonshot AI"
    assert failed["choices"][0]["finish_reason"] == "error"
    assert failed["error"]["metadata"]["error_type"] == "provider_unavailable"


@pytest.mark.parametrize("done", [False, True])
def test_a_stream_can_end_well_without_a_finish_reason(upstream: tuple[str, Upstream], done: bool) -> None:
    heard = suffer(upstream, "no_finish", f"done = {str(done).lower()}")
    assert heard.is_whole
    assert finishes(heard) == []
    assert reports(heard) == []
    assert (heard.events[-1] == "[DONE]") is done
    assert heard.text == well(upstream).text


def test_a_stream_can_end_well_without_its_end_mark(upstream: tuple[str, Upstream]) -> None:
    heard = suffer(upstream, "no_done")
    assert heard.is_whole
    assert "[DONE]" not in heard.events
    assert finishes(heard) == ["stop"]
    assert reports(heard)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("options", "reason"), [('reason = "content_filter"', "content_filter"), ("", None)])
def test_the_finish_reason_can_be_another(
    upstream: tuple[str, Upstream], options: str, reason: str | None, stream: bool
) -> None:
    expected = reason or {"vllm": "abort", "sglang": "abort"}.get(upstream[0], "error")
    fields: dict[str, Any] = {} if stream else {"stream": False, "stream_options": None}
    heard = suffer(upstream, "finish", options, **fields)
    assert heard.is_whole
    if stream:
        assert finishes(heard) == [expected]
    else:
        assert heard.json["choices"][0]["finish_reason"] == expected


# --- usage ----------------------------------------------------------------------------------------------------


def test_usage_can_be_missing(upstream: tuple[str, Upstream]) -> None:
    heard = suffer(upstream, "usage")
    assert reports(heard) == []
    assert (finishes(heard), heard.events[-1], heard.is_whole) == (["stop"], "[DONE]", True)
    body = suffer(upstream, "usage", stream=False, stream_options=None)
    assert body.is_whole
    assert "usage" not in body.json


def test_usage_can_be_repeated(upstream: tuple[str, Upstream]) -> None:
    heard = suffer(upstream, "usage", 'form = "repeated"')
    usages = reports(heard)
    assert len(usages) >= 3
    assert len({json.dumps(usage, sort_keys=True) for usage in usages}) == 1


def test_usage_can_count_up_on_every_chunk(upstream: tuple[str, Upstream]) -> None:
    heard = suffer(upstream, "usage", 'form = "cumulative"')
    outputs = [event["usage"]["completion_tokens"] for event in heard.events if event != "[DONE]"]
    assert len(outputs) > 10
    assert outputs == sorted(outputs)
    assert (outputs[0], outputs[-1]) == (0, 80)
    assert all(
        usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] or "sglang" in upstream
        for usage in reports(heard)
    )


def check_absurd(usage: Any) -> None:
    assert usage["prompt_tokens_details"]["cached_tokens"] > usage["prompt_tokens"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] > usage["completion_tokens"]
    assert usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]


def check_null(usage: Any) -> None:
    assert usage["completion_tokens_details"] == {"reasoning_tokens": None}
    assert usage.get("prompt_tokens_details") is None


FORMS = {
    "zero": lambda usage: usage["prompt_tokens"] == usage["completion_tokens"] == usage["total_tokens"] == 0,
    "huge": lambda usage: usage["prompt_tokens"] == 10**18,
    "negative": lambda usage: usage["completion_tokens"] == -81,
    "text": lambda usage: usage["completion_tokens"] == "80",
    "empty": lambda usage: usage == {},
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("form", ["absurd", "null", *FORMS])
def test_usage_can_be_what_it_cannot_be(upstream: tuple[str, Upstream], form: str, stream: bool) -> None:
    lines = len(upstream[1].lines())
    fields: dict[str, Any] = {} if stream else {"stream": False, "stream_options": None}
    heard = suffer(upstream, "usage", f'form = "{form}"', **fields)
    usages = reports(heard) if stream else [heard.json["usage"]]
    assert heard.is_whole
    assert usages
    for usage in usages:
        if form == "absurd":
            check_absurd(usage)
        elif form == "null":
            check_null(usage)
        else:
            assert FORMS[form](usage)
    (line,) = upstream[1].lines()[lines:]
    assert line["output"] == 80  # whatever it says, what was made is charged


def test_an_answer_without_usage_passes_a_usage_fault_by() -> None:
    with misbehaving(dialect="vllm") as held:
        heard = suffer(("vllm", held), "usage", 'form = "zero"', stream_options=None)
        assert held.fault_names() == [""]
    assert reports(heard) == []


# --- broken events --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "data"),
    [
        ("cut_json", None),
        ("not_json", b"upstream connect error"),
        ("not_object", b"17"),
        ("no_choices", None),
        ("bad_utf8", None),
        ("giant", None),
    ],
)
@pytest.mark.parametrize("phase", ["start", "text", "usage"])
def test_an_event_that_is_none_stands_between_the_others(
    upstream: tuple[str, Upstream], form: str, data: bytes | None, phase: str
) -> None:
    heard = suffer(upstream, "malformed", f'form = "{form}"\nphase = "{phase}"\nbytes = 100_000')
    assert heard.is_whole
    events = [event.removeprefix(b"data: ") for event in heard.body.split(b"\n\n") if event[:5] == b"data:"]
    assert events[-1] == b"[DONE]"
    bad = [event for event in events[:-1] if is_bad(event)]
    assert len(bad) == 1
    assert data is None or bad == [data]
    if form == "giant":
        assert len(bad[0]) > 100_000
    if phase == "start":
        assert events[0] == bad[0]


def is_bad(event: bytes) -> bool:
    """Whether it is no chunk of reasonable size."""
    try:
        held = json.loads(event)
    except ValueError:
        return True
    return not isinstance(held, dict) or "choices" not in held or len(event) > 50_000
