"""Faults that are answers: errors in each dialect's own words, with waits in every form."""

from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import pytest

from backends.emulator.profiles import PROFILES
from support.misbehaving import Heard, Upstream, misbehaving

MODELS = {name: profile.models[0].id for name, profile in PROFILES.items()}
NOW_S = 1_796_040_000.0  # 2026-11-30T12:00:00Z


@pytest.fixture(scope="module")
def upstreams() -> Iterator[dict[str, Upstream]]:
    with (
        misbehaving(dialect="moonshot", clock=lambda: NOW_S) as moonshot,
        misbehaving(dialect="openrouter", clock=lambda: NOW_S) as openrouter,
        misbehaving(dialect="vllm", clock=lambda: NOW_S) as vllm,
        misbehaving(dialect="sglang", clock=lambda: NOW_S) as sglang,
    ):
        yield {"moonshot": moonshot, "openrouter": openrouter, "vllm": vllm, "sglang": sglang}


def suffer(upstreams: dict[str, Upstream], dialect: str, kind: str, options: str = "", **fields: Any) -> Heard:
    held = upstreams[dialect]
    held.control("/emulator/faults", f'[[faults]]\nkind = "{kind}"\n{options}\n')
    return held.ask(**{"model": MODELS[dialect], **fields})


def error(heard: Heard) -> Any:
    """The error object, or the flat body."""
    return heard.json.get("error", heard.json)


RATE = {"type": "rate_limit_reached_error"}
WORDS = [
    # Moonshot's: platform.kimi.ai/docs/api/errors
    ("moonshot", "overloaded", "", 429, {"type": "engine_overloaded_error"}, "currently overloaded"),
    ("moonshot", "rate_limited", 'limit = "concurrency"', 429, RATE, "concurrency: 3,"),
    ("moonshot", "rate_limited", "", 429, RATE, "max RPM: 3, please try again after 1"),
    ("moonshot", "rate_limited", 'limit = "tpm"', 429, {}, "TPM rate limit, current: 4, limit: 3"),
    ("moonshot", "rate_limited", 'limit = "tpd"\nmost = 9', 429, {}, "TPD rate limit, current: 10, limit: 9"),
    ("moonshot", "quota", "", 429, {"type": "exceeded_current_quota_error"}, "please check your plan"),
    ("moonshot", "quota", "status = 403", 403, {"type": "exceeded_current_quota_error"}, "is suspended"),
    ("moonshot", "unauthorized", "", 401, {"type": "invalid_authentication_error"}, "Invalid Authentication"),
    ("moonshot", "forbidden", "", 403, {"type": "permission_denied_error"}, "is not open"),
    ("moonshot", "content_filter", "", 400, {"type": "content_filter"}, "considered high risk"),
    ("moonshot", "context", "", 400, {"type": "invalid_request_error"}, "Input token length too long"),
    ("moonshot", "context", 'over = "limit"', 400, {}, "Your request exceeded model token limit : 1048576"),
    ("moonshot", "http_error", "", 500, {"type": "server_error"}, "Internal server error"),
    ("moonshot", "http_error", "status = 503", 503, {"type": "server_unavailable"}, "unavailable"),
    ("moonshot", "queue_full", "", 503, {"type": "server_unavailable"}, "unavailable"),
    # OpenRouter's: a number as code, metadata
    ("openrouter", "overloaded", "", 429, {"code": 429}, "Provider returned error"),
    ("openrouter", "rate_limited", "", 429, {"metadata": {"error_type": "rate_limit_exceeded"}}, "Limit 3"),
    ("openrouter", "quota", "", 402, {"code": 402, "metadata": {"error_type": "payment_required"}}, "credits"),
    ("openrouter", "unauthorized", "", 401, {"code": 401}, "User not found."),
    ("openrouter", "content_filter", "", 403, {"code": 403}, "flagged"),
    ("openrouter", "context", "", 400, {"code": 400}, "is 1048576 tokens. However, you requested"),
    ("openrouter", "http_error", "status = 529", 529, {"code": 529}, "Provider returned error"),
    ("openrouter", "queue_full", "", 503, {"code": 503}, "no available model provider"),
    # vLLM's: recorded, or named as its statuses are
    ("vllm", "overloaded", "", 429, {"code": 429, "param": None, "type": "Too Many Requests"}, "overloaded"),
    ("vllm", "quota", "", 429, {"type": "insufficient_quota", "code": 429}, "quota"),
    ("vllm", "context", "", 400, {"type": "BadRequestError", "param": "input_tokens"}, "length is 1048576"),
    ("vllm", "context", 'over = "limit"', 400, {"param": "max_completion_tokens"}, "greater than max_model_len"),
    ("vllm", "http_error", "", 500, {"type": "InternalServerError", "code": 500}, "Internal Server Error"),
    ("vllm", "queue_full", "", 503, {"type": "ServiceUnavailableError", "code": 503}, "queue is full"),
    # SGLang's: flat
    ("sglang", "rate_limited", "", 429, {"object": "error", "code": 429}, "Rate limit of 3 requests per minute"),
    ("sglang", "context", "", 400, {"type": "BadRequestError", "param": None}, "than the model's context length"),
    ("sglang", "context", 'over = "limit"', 400, {"code": 400}, "max_completion_tokens is too large"),
    ("sglang", "http_error", "status = 502", 502, {"object": "error", "type": "Bad Gateway"}, "Bad Gateway"),
    ("sglang", "queue_full", "", 503, {"type": "503", "code": 503}, "The request queue is full."),
]  # fmt: skip


@pytest.mark.parametrize(("dialect", "kind", "options", "status", "fields", "words"), WORDS)
def test_an_error_has_the_dialects_shape_and_words(
    upstreams: dict[str, Upstream],
    dialect: str,
    kind: str,
    options: str,
    status: int,
    fields: dict[str, Any],
    words: str,
) -> None:
    heard = suffer(upstreams, dialect, kind, options)
    assert (heard.status, heard.is_whole) == (status, True)
    said = error(heard)
    assert words in said["message"]
    assert {name: said[name] for name in fields} == fields
    shapes = {
        "moonshot": {"message", "type"},
        "openrouter": {"message", "code"},
        "vllm": {"message", "type", "param", "code"},
        "sglang": {"object", "message", "type", "param", "code"},
    }
    assert set(said) - {"metadata"} == shapes[dialect]


@pytest.mark.parametrize("dialect", ["vllm", "sglang"])
def test_an_engine_says_401_with_a_bare_string_and_any_dialect_can(
    upstreams: dict[str, Upstream], dialect: str
) -> None:
    assert suffer(upstreams, dialect, "unauthorized").json == {"error": "Unauthorized"}
    told = suffer(upstreams, "moonshot", "unauthorized", 'form = "string"')
    assert (told.status, told.json) == (401, {"error": "Unauthorized"})


def test_the_platforms_messages_name_account_and_key_but_not_the_key_itself(
    upstreams: dict[str, Upstream],
) -> None:
    message = error(suffer(upstreams, "moonshot", "quota"))["message"]
    assert message.startswith("Your account org-")
    assert "<ak-" in message


@pytest.mark.parametrize("dialect", list(PROFILES))
@pytest.mark.parametrize("kind", ["overloaded", "rate_limited", "quota", "http_error"])
def test_a_wait_is_told_in_each_form(upstreams: dict[str, Upstream], dialect: str, kind: str) -> None:
    def told(form: str) -> Heard:
        return suffer(upstreams, dialect, kind, f'retry_after_s = 7\nretry_form = "{form}"')

    assert told("header").headers["retry-after"] == "7"
    assert told("ms").headers["retry-after-ms"] == "7000"
    moment = parsedate_to_datetime(told("date").headers["retry-after"])
    assert moment == datetime.fromtimestamp(NOW_S + 7, UTC)
    in_words = told("text")
    assert "retry-after" not in in_words.headers
    assert "7 seconds" in error(in_words)["message"]


def test_without_a_wait_nothing_is_told(upstreams: dict[str, Upstream]) -> None:
    heard = suffer(upstreams, "moonshot", "overloaded")
    assert not any(name.startswith("retry-after") for name in heard.headers)
    assert "after" not in error(heard)["message"].replace("try again later", "")


@pytest.mark.parametrize("dialect", list(PROFILES))
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_can_come_with_a_200(upstreams: dict[str, Upstream], dialect: str, stream: bool) -> None:
    heard = suffer(upstreams, dialect, "error_200", 'status = 502\nmessage = "no capacity (33/32)"', stream=stream)
    assert (heard.status, heard.is_whole) == (200, True)
    assert heard.headers["content-type"].startswith("application/json")
    assert "choices" not in heard.json
    assert error(heard)["message"] == "no capacity (33/32)"
    assert dialect == "moonshot" or error(heard)["code"] == 502


@pytest.mark.parametrize("dialect", list(PROFILES))
@pytest.mark.parametrize(
    ("status", "title"), [(502, "502 Bad Gateway"), (504, "504 Gateway Time-out"), (200, "200 OK")]
)
def test_a_proxys_page_is_html(upstreams: dict[str, Upstream], dialect: str, status: int, title: str) -> None:
    heard = suffer(upstreams, dialect, "html", f"status = {status}")
    assert (heard.status, heard.is_whole) == (status, True)
    assert heard.headers["content-type"] == "text/html"
    assert f"<title>{title}</title>" in heard.body.decode()


def test_sglangs_full_queue_is_an_error_in_a_200_as_recorded(upstreams: dict[str, Upstream]) -> None:
    heard = suffer(upstreams, "sglang", "queue_full", "role = false", stream=True)
    # recorded, SGLang 0.5.23, 2026-11-30
    full = {
        "object": "error",
        "message": "The request queue is full.",
        "type": "SERVICE_UNAVAILABLE",
        "param": None,
        "code": 503,
    }
    assert (heard.status, heard.is_whole) == (200, True)
    assert heard.events == [{"error": full}, "[DONE]"]


@pytest.mark.parametrize("dialect", list(PROFILES))
def test_a_full_queue_can_begin_like_an_answer(upstreams: dict[str, Upstream], dialect: str) -> None:
    heard = suffer(upstreams, dialect, "queue_full", "done = false", stream=True)
    role, failed = heard.events
    assert (heard.status, heard.is_whole) == (200, True)
    assert role["object"] == "chat.completion.chunk"
    assert role["choices"][0]["delta"]["role"] == "assistant"
    assert not role["choices"][0]["delta"]["content"]
    assert failed["error"]["message"]


def test_a_message_of_ones_own_can_be_said(upstreams: dict[str, Upstream]) -> None:
    # recorded: what a vLLM that is shutting down says to new requests
    heard = suffer(upstreams, "vllm", "http_error", 'message = "cannot schedule new futures after shutdown"')
    assert heard.json == {
        "error": {
            "message": "cannot schedule new futures after shutdown",
            "type": "InternalServerError",
            "param": None,
            "code": 500,
        }
    }


def test_faults_can_hit_other_paths_too(upstreams: dict[str, Upstream]) -> None:
    held = upstreams["moonshot"]
    held.control("/emulator/faults", '[[faults]]\nkind = "html"\npath = "/v1/models"\nrequests = [1]\n')
    assert [held.get("/v1/models").status for _ in range(2)] == [502, 200]
    assert held.ask().status == 200
