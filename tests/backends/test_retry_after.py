"""The wait an upstream asks for, in every form, in seconds from now."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.faults import FaultKind, fault_from_response
from backends.json import encode

NOW = 1_796_040_000.0  # Mon, 30 Nov 2026 12:00:00 GMT


def waits(status: int, message: str = "slow down", /, **headers: str) -> float | None:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return fault_from_response(status, named, encode({"error": {"message": message}}), NOW).retry_after_s


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"Retry-After": "Mon, 30 Nov 2026 12:00:07 GMT"}, 7),
        ({"Retry-After": "Monday, 30-Nov-26 12:00:07 GMT"}, 7),
        ({"Retry-After": "Mon Nov 30 12:00:07 2026"}, 7),
        ({"Retry-After": "Mon, 30 Nov 2026 11:59:00 GMT"}, 0),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"x-ratelimit-reset": "30"}, 30),
        ({"X-RateLimit-Reset": "1796040030"}, 30),
        ({"X-RateLimit-Reset": "1796040030000"}, 30),
        ({"x-ratelimit-reset-requests": "1m30s", "x-ratelimit-reset-tokens": "20ms"}, 90),
        (
            {
                "x-ratelimit-reset-requests": "6m0s",
                "x-ratelimit-remaining-requests": "9",
                "x-ratelimit-reset-tokens": "2s",
                "x-ratelimit-remaining-tokens": "0",
            },
            2,
        ),
        ({"ratelimit-reset": "2026-11-30T12:00:09Z"}, 9),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "-3"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "Mon, 99 Nov 2026 12:00:07 GMT"}, None),
    ],
)
def test_the_wait_asked_for_is_read_in_every_form(headers: dict[str, str], seconds: float | None) -> None:
    fault = fault_from_response(429, headers, b'{"error":"slow down"}', NOW)
    assert (fault.kind, fault.retry_after_s) == (FaultKind.RATE, seconds)


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ("reached RPM limit, please try again after 3 seconds", 3),
        ("Please try again in 1m30s.", 90),
        ("retry after 2 minutes", 120),
        ("try again in 250 milliseconds", 0.25),
        ("try again later", None),
    ],
)
def test_the_wait_asked_for_is_read_from_the_sentence(message: str, seconds: float | None) -> None:
    assert waits(429, message) == seconds


def test_a_header_wins_over_the_sentence_and_both_over_a_reset() -> None:
    sentence = "please try again after 3 seconds"
    assert waits(429, sentence, retry_after="9", x_ratelimit_reset="60") == 9
    assert waits(429, sentence, x_ratelimit_reset="60") == 3


def test_a_reset_that_comes_with_every_answer_is_no_wait_after_a_500() -> None:
    assert waits(500, x_ratelimit_reset="60") is None
    assert waits(503, retry_after="4") == 4


def test_a_fault_that_time_does_not_mend_names_no_wait() -> None:
    assert waits(400, retry_after="4") is None
    assert waits(401, retry_after="4") is None


@given(st.text(max_size=40), st.sampled_from(["retry-after", "retry-after-ms", "x-ratelimit-reset"]))
@settings(max_examples=200)
def test_no_header_gives_a_wait_that_is_none(text: str, name: str) -> None:
    wait_s = fault_from_response(429, {name: text}, b"", NOW).retry_after_s
    assert wait_s is None or 0 <= wait_s < 10**16
