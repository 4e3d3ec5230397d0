"""Messages of upstreams without what no client may see."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.fault_text import MESSAGE_CHARS, clean_message, field_path, first_field, page_title

LEAKS = [
    ("account org-1a2b <ak-9z> suspended", "account [redacted] [redacted] suspended"),
    ("org-1 reached RPM limit", "[redacted] reached RPM limit"),
    ("Incorrect API key provided: sk-ab12*****wxyz.", "Incorrect API key provided: [redacted]"),
    ("Authorization: Bearer abcDEF123 refused", "Authorization: [redacted] [redacted] refused"),
    ("bad api_key=topsecret, sorry", "bad api_key=[redacted], sorry"),
    ("GET https://me:pw@host.example/v1?key=abc failed", "GET https://host.example/v1?key=[redacted] failed"),
    ("token eyJhbGciOiJIUzI1NiJ9.eyJzdWIi.abc expired", "token [redacted] expired"),
    ("id 0123456789abcdef0123456789abcdef0 unknown", "id [redacted] unknown"),
    ("key " + "aB3" * 14 + " is wrong", "key [redacted] is wrong"),
    ("no such file /usr/lib/python3/x.py", "no such file [path]"),
    (
        "Server is pinned to '/srv/models/Kimi-K3'; requested 'nope'.",
        "Server is pinned to '[path]'; requested 'nope'.",
    ),
    (r"C:\Users\me\model.gguf is broken", "[path] is broken"),
    ("see file:///etc/passwd now", "see [path] now"),
    ("boom at engine/core.py:17", "boom at [path]"),
    ("<b>bad</b> <br/>request<!-- x -->", "bad request x"),
    ("a\n\n b\x00c\u2028d", "a b c d"),
]


@pytest.mark.parametrize(("message", "clean"), LEAKS)
def test_a_message_is_rid_of_what_no_client_may_see(message: str, clean: str) -> None:
    assert clean_message(message) == clean


@pytest.mark.parametrize(
    "message",
    [
        "The model `nope` does not exist. Valid aliases: kimi-k3.1-pro, moonshotai/Kimi-K3.1-Pro.",
        "unknown route /v1/nope, or and/or 5 req/s",
        "At /properties/x/type: a < b and c > d; <|open|> is a marker",
        "Field 'n': Value must be between 1 <= value <= 4, but got 0",
        "max_tokens=100000 cannot be greater than max_model_len=8192. (parameter=max_tokens, value=100000)",
        "tool_call_id chatcmpl-tool-b48554507a09c718 not found",
        "tool_call_id CGsw4QY5jJ5z3VYyzKtMa6CUPR7yAaBO not found",
        "Tool 'get_weather_forecast_v2_for_city_and_region' not found in tools list.",
    ],
)
def test_a_harmless_message_is_left_alone(message: str) -> None:
    assert clean_message(message) == message


def test_a_traceback_is_cut_off_and_one_alone_leaves_its_exception() -> None:
    trace = 'Traceback (most recent call last):\n  File "/srv/a.py", line 3, in f\n    g()\nValueError: bad thing'
    assert clean_message("it broke\n" + trace) == "it broke"
    assert clean_message(trace) == "ValueError: bad thing"


def test_a_validators_findings_are_shown_without_the_input_they_repeat() -> None:
    finding = (
        "{'type': 'string_type', 'loc': ('body', 'messages', %d, 'f(), g[x]', 'content'), "
        "'msg': \"not 'a' (b)\", 'input': 'my secret prompt'}"
    )
    text = "5 validation errors:\n  " + "\n  ".join(finding % number for number in range(5))
    shown = "; ".join(f"messages[{number}].content: not 'a' (b)" for number in range(3))
    assert clean_message(text) == f"{shown}; and 2 more"
    assert first_field(text) == "messages[0].content"


@given(
    st.lists(
        st.sampled_from(
            ["org-1a2b3c", "sk-or-v1-abcdef", "<ak-9z>", "/srv/app/x.py", "<html>", "<p>", "\n", "word", "'"]
        ),
        max_size=12,
    ),
    st.sampled_from([" ", ": ", ", ", "\n"]),
)
@settings(max_examples=200)
def test_no_message_leaks_whatever_stands_around(words: list[str], glue: str) -> None:
    message = clean_message(glue.join(words))
    assert not re.search(r"org-1|sk-or|ak-9|srv/app|<html|<p>|\n", message)


@given(st.text(max_size=300))
@settings(max_examples=200)
def test_any_text_is_cleaned_to_one_bounded_line_and_stays_clean(text: str) -> None:
    clean = clean_message(text)
    assert len(clean) <= MESSAGE_CHARS
    assert clean == " ".join(clean.split())


def test_hostile_messages_are_cleaned_in_good_time() -> None:
    for text in (
        "a" * 10**6,
        "/a" * 10**6,
        "-" * 10**6,
        "'loc': (" * 10**5,
        "a-1" * 10**6,
        " " * 10**6,
        "<a " * 10**6,
    ):
        assert len(clean_message(text)) <= MESSAGE_CHARS


def test_a_field_path_leaves_out_what_is_the_validators_own() -> None:
    parts = ["body", "messages", "0", "ChatCompletionUserMessageParam", "content"]
    assert field_path(parts) == "messages[0].content"
    assert field_path(["body", "28"]) == ""
    assert field_path(["header", "content-type"]) == ""


def test_a_page_is_told_from_text_by_its_beginning() -> None:
    assert page_title(" <!DOCTYPE html><title>sk-abc 502</title>") == "[redacted] 502"
    assert page_title("<html></html>") == ""
    assert page_title("a < b, see <html>") is None
