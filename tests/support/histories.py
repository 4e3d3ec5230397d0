"""Histories of tool calls, from whole to hopelessly broken: builders, and strategies for property tests."""

from typing import Any

from hypothesis import strategies as st

HI = {"role": "user", "content": "hi"}
PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def call(id: str | None, name: str = "read", arguments: Any = "{}") -> dict[str, Any]:
    made = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return made if id is None else {"id": id, **made}


def calls(*made: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": list(made), **members}


def result(id: str | None, content: Any = "ok") -> dict[str, Any]:
    made = {"role": "tool", "content": content}
    return made if id is None else {**made, "tool_call_id": id}


def tool(name: str = "read", **function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": PARAMETERS, **function}}


# --- strategies -----------------------------------------------------------------------------------------------

ids = st.sampled_from(["a", "b", "a:0", "", None])
arguments = st.sampled_from(["{}", '{"a":1}', "", "{", "[1]", "null", None, {"a": 1}])
blank = st.sampled_from(["", " ", "\n", "\u3000"])
part = st.one_of(
    blank.map(text),
    st.just(text("words")),
    st.just({**text("words"), "prompt_cache_breakpoint": {"ttl": "1h"}}),
    st.just({"type": "image_url", "image_url": {"url": "ms://a"}}),
    st.just({"type": "video_url", "video_url": "ms://b"}),
)
content = st.one_of(st.none(), st.just(""), st.just("words"), st.lists(part, max_size=3))
declared = st.lists(st.sampled_from([tool(), tool("write"), tool("list", parameters={})]), max_size=2)


@st.composite
def message(draw: st.DrawFn) -> dict[str, Any]:
    role = draw(st.sampled_from(["system", "developer", "user", "user", "assistant", "assistant"]))
    made: dict[str, Any] = {"role": role}
    if draw(st.booleans()):
        made["content"] = draw(content)
    if role == "assistant":
        if draw(st.booleans()):
            made["reasoning_content"] = draw(st.sampled_from([None, "", "a thought"]))
        if draw(st.booleans()):
            made["tool_calls"] = [
                call(id, arguments=given) for id, given in draw(st.lists(st.tuples(ids, arguments), max_size=3))
            ]
    if role == "system" and draw(st.booleans()):
        made["tools"] = draw(declared)
    return made


@st.composite
def turn(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A message and, mostly, the results of its calls; some with other ids, some missing."""
    first = draw(message())
    results = [result(one.get("id"), draw(content)) for one in first.get("tool_calls", [])]
    if results and draw(st.integers(0, 3)) == 0:
        results = [{**one, "tool_call_id": f"{at}_{one.get('tool_call_id')}"} for at, one in enumerate(results)]
    if results and draw(st.integers(0, 3)) == 0:
        results.pop()
    return [first, *draw(st.permutations(results))]


histories = st.lists(turn(), min_size=1, max_size=4).map(lambda turns: [one for turn in turns for one in turn])
