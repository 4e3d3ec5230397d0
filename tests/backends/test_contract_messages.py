"""What is found in messages, how calls and results are paired, and that nothing odd in them breaks anything."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.catalog import DIALECTS
from backends.contract import NO_RULES, Contract, Incapable
from backends.contract_mending import mend
from backends.contract_messages import Look, look_at
from backends.contract_tools import ToolLists
from backends.json import encode
from backends.messages import Encoded, encode_messages, read_heads
from backends.tool_pairs import Pairer, Pairing
from support.cases import case

MOONSHOT = DIALECTS["moonshot"]
HI = {"role": "user", "content": "hi"}
STRICT = MOONSHOT.contract


def looked(messages: list[Any], contract: Contract = STRICT) -> Look:
    return look_at(read_heads(msgspec.Raw(encode(messages))), contract)


def found(*messages: Any, contract: Contract = STRICT) -> list[tuple[str, str, bool]]:
    return [(one.rule, one.path, one.is_fatal) for one in looked([*messages], contract).found]


def encoded(messages: list[Any], dialect: str = "moonshot") -> tuple[list[msgspec.Raw], Encoded]:
    raw = msgspec.Raw(encode(messages))
    raws, heads = msgspec.json.decode(raw, type=list[msgspec.Raw]), read_heads(raw)
    kind = DIALECTS[dialect]
    mending = mend(raws, heads, look_at(heads, kind.contract), ToolLists(kind))
    return raws, encode_messages(raws, heads, kind, mending)


def calls(*ids: str) -> dict[str, Any]:
    made = [{"id": id, "type": "function", "function": {"name": "f", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(id: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": "ok"}


def test_everything_wrong_in_a_history_is_found_in_its_order() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": ""}]},
        {"role": "critic", "content": [{"type": "text", "text": " "}, {"type": "file"}]},
        calls("a", "b"),
        result("b"),
        {"role": "system", "content": "x", "tools": [1]},
        HI,
        {"role": "assistant", "content": "", "function_call": {"name": "f"}},
        {"role": "tool", "content": "ok"},
        calls("c"),
    ]
    assert found(*messages) == [
        ("role", "messages[0].role", False),
        ("empty", "messages[0]", False),
        ("role", "messages[1].role", True),
        ("part_type", "messages[1].content[1]", True),
        ("blank_part", "messages[1].content[0]", False),
        ("unanswered", "messages[2].tool_calls[0]", False),
        ("tools_beside", "messages[4].content", False),
        ("empty", "messages[6]", True),
        ("stray_result", "messages[7].tool_call_id", True),
        ("open_call", "messages[8].tool_calls[0]", False),
    ]


def test_without_rules_only_arguments_are_found() -> None:
    broken = calls("a")
    broken["tool_calls"][0]["function"]["arguments"] = "{"
    messages = [{"role": "critic", "content": ""}, broken, HI, {"role": "user", "content": [], "tools": [1]}]
    expected = [("arguments", "messages[1].tool_calls[0].function.arguments", False)]
    assert found(*messages, contract=NO_RULES) == expected


@pytest.mark.parametrize(
    ("content", "has_media"),
    [
        ("data:image/png", False),
        ([{"type": "text", "text": "image_url"}], False),
        ([{"type": "image_url", "image_url": "ms://a"}], True),
        ([{"type": "text", "video_url": {"url": "ms://a"}}], True),
        ([7], True),
    ],
)
def test_media_are_noticed(content: Any, has_media: bool) -> None:
    assert looked([{"role": "user", "content": content}]).has_media is has_media


def paired(*messages: tuple[str, Any]) -> Pairing:
    pairer = Pairer()
    for index, (role, value) in enumerate(messages):
        if role == "assistant":
            pairer.assistant(index, value)
        elif role == "tool":
            pairer.result(index, value)
        else:
            pairer.other()
    return pairer.pairing()


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([("assistant", ["a", "b"]), ("tool", "b"), ("tool", "a")], ((), (), ())),
        ([("assistant", ["a"]), ("tool", "a"), ("assistant", ["a"]), ("tool", "a")], ((), (), ())),
        ([("assistant", ["a"]), ("user", 0), ("tool", "a")], ((2,), (), ((0, 0, False),))),
        ([("assistant", ["a", "b"]), ("tool", "a_"), ("tool", "b_")], ((), ((1, "a"), (2, "b")), ())),
        ([("assistant", ["a", "b"]), ("tool", "b"), ("tool", "x")], ((), ((2, "a"),), ())),
        ([("assistant", ["a", "b"]), ("tool", "x")], ((1,), (), ((0, 0, True), (0, 1, True)))),
        ([("assistant", ["a", "a"]), ("tool", "x"), ("tool", "y")], ((1, 2), (), ((0, 0, True), (0, 1, True)))),
        ([("assistant", [""]), ("tool", "")], ((1,), (), ((0, 0, True),))),
        ([("tool", "a"), ("assistant", []), ("tool", "a")], ((0, 2), (), ())),
    ],
)
def test_results_are_looked_for_among_the_calls_of_their_turn(
    messages: list[tuple[str, Any]], expected: tuple[Any, Any, Any]
) -> None:
    assert paired(*messages) == Pairing(*expected)


def test_what_needs_nothing_is_the_very_slice_that_came() -> None:
    messages = [HI, calls("a"), result("a"), {"role": "assistant", "content": [{"type": "text", "text": "a"}]}]
    for dialect in ("moonshot", "sglang"):
        raws, made = encoded(messages, dialect)
        assert all(one is raw for one, raw in zip(made.messages, raws, strict=True))
        assert made.adjusted == ()


def test_a_mended_message_keeps_the_bytes_of_its_other_members() -> None:
    raw = msgspec.Raw(
        b'[{"x" : 1.50,"role":"assistant","content":[{"type":"text","text":""}, {"type":"text", "text":"\\u0061"}]'
        b',"tool_calls":[]},{"role":"user","content":"hi"}]'
    )
    raws, heads = msgspec.json.decode(raw, type=list[msgspec.Raw]), read_heads(raw)
    mending = mend(raws, heads, look_at(heads, STRICT), ToolLists(MOONSHOT))
    made = encode_messages(raws, heads, MOONSHOT, mending)
    assert bytes(made.messages[0]) == (
        b'{"x":1.50,"role":"assistant","content":[{"type":"text", "text":"\\u0061"}],"tool_calls":[]}'
    )
    assert made.messages[1] is raws[1]


@pytest.mark.parametrize("dialect", ["moonshot", "openrouter"])
@pytest.mark.parametrize("content", [[{"type": "text", "text": ""}], [{"type": "text", "text": "  "}], []])
def test_case_tool_05_content_of_blank_parts_goes_and_the_calls_stay(dialect: str, content: Any) -> None:
    messages = case("tool-05")["given"]["client_request"]["messages"]
    messages = [messages[0], {**messages[1], "content": content}, messages[2]]
    _, made = encoded(messages, dialect)
    sent = msgspec.json.decode(made.messages[1])
    assert {name: value for name, value in sent.items() if name not in ("reasoning_content", "reasoning")} == {
        name: messages[1][name] for name in ("role", "tool_calls")
    }
    assert "call it" in (sent.get("reasoning_content"), sent.get("reasoning"))
    assert made.adjusted == ("messages[1].content",)


def test_case_hist_04_the_index_of_what_follows_is_the_clients() -> None:
    messages = [*case("hist-04")["given"]["client_request"]["messages"], calls("a"), HI]
    _, made = encoded(messages)
    roles = [msgspec.json.decode(raw)["role"] for raw in made.messages]
    assert roles == ["user", "user", "user"]
    assert made.adjusted == ("messages[1]", "messages[3]")


odd = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["type", "text", "id", "function", "arguments", "name"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
members = st.dictionaries(
    st.sampled_from(
        [
            "content",
            "tool_calls",
            "tool_call_id",
            "tools",
            "partial",
            "refusal",
            "prompt_cache_breakpoint",
            "audio",
        ]
    ),
    odd,
    max_size=4,
)
odd_messages = st.lists(
    st.tuples(st.sampled_from(["system", "user", "assistant", "tool", "x"]), members).map(
        lambda pair: {"role": pair[0], **pair[1]}
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=80)
@given(st.sampled_from(sorted(DIALECTS)), odd_messages)
def test_whatever_stands_in_a_message_is_encoded_or_refused_by_its_path(
    dialect: str, messages: list[dict[str, Any]]
) -> None:
    try:
        _, made = encoded(messages, dialect)
    except Incapable as refusal:
        path = refusal.param
    else:
        path = "messages"
        assert len(made.messages) >= 1
    assert path.startswith("messages")
