"""The stream as the client sees it: what is held back, where usage stands, what ends it."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from backends.json import JsonObject, decode
from kimi_gateway.core.shaping import DONE, Shaper

USAGE: JsonObject = {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7}


def shaper(n: int = 1, *, usage: bool = False, meta: bool = False) -> Shaper:
    return Shaper(n=n, wants_usage=usage, wants_meta=meta, model="kimi-k3.1-pro", created=1, answer_id="a")


def chunk(index: int = 0, finish: str | None = None, **delta: str) -> JsonObject:
    return {"id": "up-1", "choices": [{"index": index, "delta": dict(delta), "finish_reason": finish}]}


def feed(made: Shaper, data: JsonObject) -> list[Any]:
    choice: Any = data["choices"]
    delta, finish = choice[0]["delta"], choice[0]["finish_reason"]
    delivers = bool(delta.get("content"))
    finished = (choice[0]["index"],) if finish else ()
    return parsed(made.add(data, commits=delivers or bool(finish), finished=finished, delivers=delivers))


def parsed(events: list[bytes]) -> list[Any]:
    return ["DONE" if event == DONE else decode(event.removeprefix(b"data: ")) for event in events]


def test_a_role_only_chunk_waits_for_the_first_content() -> None:
    made = shaper()
    assert feed(made, chunk(role="assistant")) == []
    events = feed(made, chunk(content="Hi"))
    assert [event["choices"][0]["delta"] for event in events] == [{"role": "assistant"}, {"content": "Hi"}]


def test_usage_stands_in_the_finishing_chunk_and_once_more_only_where_it_was_asked_for() -> None:
    for asked in (False, True):
        made = shaper(usage=asked)
        feed(made, chunk(content="Hi"))
        assert feed(made, chunk(finish="stop")) == []
        end = parsed(made.end(USAGE, {"target": "t"}))
        assert end[0]["choices"][0]["usage"] == USAGE
        assert "usage" not in end[0]
        assert end[-1] == "DONE"
        assert [event["choices"] for event in end[1:-1]] == ([[]] if asked else [])
        if asked:
            assert end[1]["usage"] == USAGE
            assert end[1]["kimi"] == {"target": "t"}


def test_meta_alone_rides_on_the_finishing_chunk() -> None:
    made = shaper(meta=True)
    feed(made, chunk(content="Hi", finish="stop"))
    end = parsed(made.end(None, {"target": "t"}))
    assert end[0]["kimi"] == {"target": "t"}
    assert "usage" not in end[0]["choices"][0]


def test_with_two_choices_usage_stands_in_the_last_finishing_chunk() -> None:
    made = shaper(n=2)
    feed(made, chunk(0, content="A"))
    assert feed(made, chunk(1, finish="stop")) == []
    assert [event["choices"][0]["index"] for event in feed(made, chunk(0, content="B"))] == [1, 0]
    feed(made, chunk(0, finish="stop"))
    end = parsed(made.end(USAGE, {}))
    assert (end[0]["choices"][0]["index"], end[0]["choices"][0]["usage"]) == (0, USAGE)


def test_a_repeated_finish_is_not_sent_twice() -> None:
    made = shaper()
    feed(made, chunk(content="Hi"))
    feed(made, chunk(finish="stop"))
    assert feed(made, chunk(finish="stop")) == []
    assert len(parsed(made.end(USAGE, {}))) == 2


def test_the_public_model_and_the_upstreams_id_are_on_every_event() -> None:
    made = shaper(usage=True)
    events = feed(made, chunk(content="Hi")) + (feed(made, chunk(finish="stop")) or parsed(made.end(USAGE, {})))
    assert {(event["id"], event["model"]) for event in events if event != "DONE"} == {("up-1", "kimi-k3.1-pro")}


@given(st.lists(st.tuples(st.integers(0, 2), st.text(max_size=4)), max_size=30), st.permutations([0, 1, 2]))
def test_no_text_is_lost_or_reordered_within_a_choice(pieces: list[tuple[int, str]], ends: list[int]) -> None:
    made = shaper(n=3)
    events = [event for index, text in pieces for event in feed(made, chunk(index, content=text))]
    for index in ends:
        events += feed(made, chunk(index, finish="stop"))
    assert made.complete
    events += parsed(made.end(USAGE, {}))
    assert events.pop() == "DONE"
    for index in range(3):
        own = [event["choices"][0] for event in events if event["choices"][0]["index"] == index]
        assert "".join(choice["delta"].get("content", "") for choice in own) == "".join(
            text for at, text in pieces if at == index
        )
        assert [choice["finish_reason"] for choice in own if choice["finish_reason"]] == ["stop"]
    assert sum("usage" in event["choices"][0] for event in events) == 1
