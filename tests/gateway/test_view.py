"""The narrow view: what it reads, and the 400s that name a field."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.json import encode
from kimi_gateway.core.view import read
from kimi_gateway.errors import InvalidRequest

HI = {"role": "user", "content": "hi"}


def body(**fields: object) -> bytes:
    return encode({"model": "kimi-k3.1-pro", "messages": [HI], **fields})


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b"", None),
        (b"[1]", None),
        (b'{"model": "m", "messages": [', None),
        (b'{"model": "\xff", "messages": []}', None),
        (encode({"messages": [HI]}), "model"),
        (body(model=7), "model"),
        (body(model=""), "model"),
        (encode({"model": "m"}), "messages"),
        (body(messages=[]), "messages"),
        (body(messages="hi"), "messages"),
        (body(messages=[HI, "hi"]), "messages[1]"),
        (body(messages=[{"content": "hi"}]), "messages[0]"),
        (body(messages=[{"role": 7, "content": "hi"}]), "messages[0].role"),
        (body(stream="yes"), "stream"),
        (body(stream_options=[]), "stream_options"),
        (body(stream_options={"include_usage": 1}), "stream_options.include_usage"),
        (body(n=0), "n"),
        (body(n=True), "n"),
        (body(max_tokens=-1), "max_tokens"),
        (body(max_completion_tokens="many"), "max_completion_tokens"),
        (body(reasoning_effort={"effort": "low"}), "reasoning_effort"),
        (body(thinking="on"), "thinking"),
        (body(thinking={"type": 1}), "thinking.type"),
        (body(prompt_cache_options={"ttl": "2h"}), "prompt_cache_options.ttl"),
        (body(prompt_cache_options={"mode": "explicit"}), "prompt_cache_options.mode"),
        (body(service_tier=1), "service_tier"),
        (body(tool_choice=5), "tool_choice"),
        (body(tool_choice={"type": "function"}), "tool_choice.function.name"),
    ],
)
def test_bad_input_is_a_400_that_names_the_field(data: bytes, param: str | None) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(data)
    assert (caught.value.status, caught.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"n": 0}, "invalid_value"),
        ({"n": -1}, "invalid_value"),
        ({"n": 0.0}, "invalid_value"),
        ({"n": 1.5}, "invalid_type"),
        ({"n": "1"}, "invalid_type"),
        ({"max_tokens": 0}, "invalid_value"),
        ({"prompt_cache_options": {"ttl": "2h"}}, "invalid_value"),
        ({"prompt_cache_options": {"ttl": 300}}, "invalid_type"),
        ({"prompt_cache_options": {"mode": "explicit"}}, "invalid_value"),
        ({"prompt_cache_options": {"mode": 1}}, "invalid_type"),
        ({"stream": "yes"}, "invalid_type"),
        ({"messages": [{"content": "hi"}]}, "missing_field"),
        ({"messages": [{"role": 7}]}, "invalid_type"),
    ],
)
def test_a_value_of_the_right_type_is_not_called_a_wrong_type(fields: dict[str, object], code: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(body(**fields))
    assert caught.value.code == code


def test_a_number_that_no_count_can_be_is_refused_like_any_other() -> None:
    with pytest.raises(InvalidRequest) as caught:
        read(b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":1e400}')
    assert caught.value.param == "max_tokens"


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 900}, 900),
        ({"max_tokens": 900, "max_completion_tokens": 1500}, 1500),
        ({}, None),
        ({"max_completion_tokens": None}, None),
    ],
)
def test_the_newer_output_limit_wins_and_null_is_absent(fields: dict[str, object], limit: int | None) -> None:
    assert read(body(**fields)).output_limit == limit


def test_untouched_fields_keep_their_bytes() -> None:
    data = b'{"model":"m","messages":[{"role":"user","content":"\\u00e9"}],"frob" : { "a":1.50e0 } }'
    view = read(data)
    assert bytes(view.fields["frob"]) == b'{ "a":1.50e0 }'
    assert bytes(view.messages[0]) == b'{"role":"user","content":"\\u00e9"}'


@given(st.text(), st.text(alphabet="ABCDabcd0123+/", max_size=400))
def test_media_is_not_counted_as_text(words: str, base64: str) -> None:
    part = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{base64}"}}
    plain = read(
        body(messages=[{"role": "user", "content": [words, {**part, "image_url": {"url": "data:image/png"}}]}])
    )
    with_media = read(body(messages=[{"role": "user", "content": [words, part]}]))
    assert with_media.text.text_bytes <= plain.text.text_bytes


@given(st.text(max_size=300))
def test_the_size_of_the_text_keeps_its_bounds(words: str) -> None:
    data = body(messages=[{"role": "user", "content": words}])
    size = read(data).text
    outside = sum(1 for byte in data if byte > 127)
    assert size.text_bytes == len(data)
    assert size.non_ascii_bytes <= outside
    assert size.estimate().high == len(data)
