"""Errors of the other side as typed ones, over real sockets: the gateway's table and Moonshot's own."""

from collections.abc import Iterator
from typing import Any

import pytest

from kimi_sdk import (
    AuthenticationFailed,
    BadReply,
    BadRequest,
    BudgetExceeded,
    Chat,
    ContentFiltered,
    ContextTooLong,
    KimiError,
    Overloaded,
    PermissionRefused,
    QuotaExhausted,
    RateLimited,
    RequestRefused,
    ServerFailed,
)
from support.scripted import ScriptedUpstream


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("KIMI_BASE_URL", "KIMI_API_KEY"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream() as server:
        yield server


def caught(upstream: ScriptedUpstream, given: dict[str, Any], **arguments: Any) -> KimiError:
    upstream.add(given)
    with Chat(base_url=upstream.base_url, max_retries=0, **arguments) as chat, pytest.raises(KimiError) as raised:
        chat.ask("hi")
    assert len(upstream.requests) == 1
    return raised.value


def error(message: str, **fields: Any) -> dict[str, Any]:
    return {"error": {"message": message, "type": None, "param": None, "code": None, **fields}}


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        (400, {"type": "invalid_request_error", "param": "temperature"}, BadRequest),
        (404, {"type": "invalid_request_error", "code": "model_not_found"}, BadRequest),
        (413, {"type": "invalid_request_error"}, BadRequest),
        (415, {"type": "invalid_request_error"}, BadRequest),
        (401, {"type": "authentication_error"}, AuthenticationFailed),
        (403, {"type": "permission_error"}, PermissionRefused),
        (400, {"type": "invalid_request_error", "code": "context_length_exceeded"}, ContextTooLong),
        (400, {"type": "content_filter", "code": "content_filter"}, ContentFiltered),
        (402, {"type": "insufficient_quota", "code": "budget_exceeded"}, BudgetExceeded),
        (402, {"type": "exceeded_current_quota_error"}, QuotaExhausted),
        (429, {"type": "rate_limit_error", "code": "rate_limit_exceeded"}, RateLimited),
        (429, {"type": "rate_limit_error", "code": "queue_timeout"}, RateLimited),
        (502, {"type": "upstream_error", "code": "bad_gateway"}, ServerFailed),
        (502, {"type": "upstream_error", "code": "upstream_auth"}, ServerFailed),
        (504, {"type": "upstream_timeout", "code": "upstream_timeout"}, ServerFailed),
        (503, {"type": "upstream_error", "code": "no_target"}, Overloaded),
        (503, {"type": "server_error", "code": "shutting_down"}, Overloaded),
        (503, {"type": "server_error", "code": "ledger_unavailable"}, Overloaded),
    ],
)
def test_each_row_of_the_gateways_error_table_has_its_class(
    upstream: ScriptedUpstream, status: int, fields: dict[str, Any], expected: type[RequestRefused]
) -> None:
    failure = caught(upstream, {"status": status, "json": error("what and why", **fields)})

    assert type(failure) is expected
    assert isinstance(failure, RequestRefused)
    assert "what and why" in str(failure)
    assert (failure.status, failure.type) == (status, fields["type"])
    assert failure.code == fields.get("code")
    assert failure.param == fields.get("param")


@pytest.mark.parametrize(
    ("status", "kind", "message", "expected"),
    [
        (429, "engine_overloaded_error", "The engine is currently overloaded", Overloaded),
        (429, "rate_limit_reached_error", "max RPM: 3, please try again after 1 seconds", RateLimited),
        (429, "exceeded_current_quota_error", "You exceeded your current token quota", QuotaExhausted),
        (400, "invalid_request_error", "Your request exceeded model token limit : 1048576", ContextTooLong),
        (401, "invalid_authentication_error", "Invalid Authentication", AuthenticationFailed),
    ],
)
def test_moonshots_own_errors_have_the_same_classes(
    upstream: ScriptedUpstream, status: int, kind: str, message: str, expected: type[RequestRefused]
) -> None:
    body = {"error": {"type": kind, "message": message}}

    assert type(caught(upstream, {"status": status, "json": body})) is expected


def test_when_to_come_back_and_whom_to_ask_are_told(upstream: ScriptedUpstream) -> None:
    headers = {"Retry-After": "7", "X-Should-Retry": "true", "x-kimi-request-id": "kr_7"}

    failure = caught(upstream, {"status": 429, "headers": headers, "json": error("busy", type="rate_limit_error")})

    assert isinstance(failure, RateLimited)
    assert (failure.retry_after_s, failure.should_retry, failure.request_id) == (7, True, "kr_7")


def test_a_final_answer_is_not_to_be_repeated(upstream: ScriptedUpstream) -> None:
    failure = caught(upstream, {"status": 502, "headers": {"x-should-retry": "false"}, "json": error("no")})

    assert isinstance(failure, ServerFailed)
    assert (failure.should_retry, failure.retry_after_s) == (False, None)


@pytest.mark.parametrize(
    ("key", "expected"),
    [("sk-wrong", "The key came from the argument api_key"), (None, "No key was sent")],
)
def test_a_401_says_which_address_and_key_were_used(
    upstream: ScriptedUpstream, key: str | None, expected: str
) -> None:
    failure = caught(upstream, {"status": 401, "json": error("unknown key")}, api_key=key)

    assert expected in str(failure)
    assert f"401 from {upstream.base_url}" in str(failure)
    assert "base_url came from the argument base_url" in str(failure)
    assert "sk-wrong" not in str(failure)


def test_a_401_names_the_variables_where_they_were_used(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KIMI_BASE_URL", upstream.base_url)
    monkeypatch.setenv("KIMI_API_KEY", "sk-wrong")
    upstream.add({"status": 401, "json": error("unknown key")})

    with Chat() as chat, pytest.raises(AuthenticationFailed) as raised:
        chat.ask("hi")

    assert "The key came from the variable KIMI_API_KEY" in str(raised.value)
    assert "base_url came from the variable KIMI_BASE_URL" in str(raised.value)


def test_an_error_in_a_200_is_raised_with_its_own_status(upstream: ScriptedUpstream) -> None:
    body = error("nobody took it", type="upstream_error", code="no_target", status=503)

    failure = caught(upstream, {"status": 200, "json": body, "headers": {"x-request-id": "kr_5"}})

    assert type(failure) is Overloaded
    assert isinstance(failure, RequestRefused)
    assert (failure.status, failure.code, failure.request_id) == (503, "no_target", "kr_5")


def test_a_page_of_an_intermediary_is_a_failed_server_without_its_html(upstream: ScriptedUpstream) -> None:
    page = "<html><head><title>504 Gateway Time-out</title></head><body>nginx</body></html>"

    failure = caught(upstream, {"status": 504, "headers": {"Content-Type": "text/html"}, "text": page})

    assert type(failure) is ServerFailed
    assert "<html>" not in str(failure)


def test_a_page_with_status_200_is_a_bad_reply(upstream: ScriptedUpstream) -> None:
    failure = caught(upstream, {"status": 200, "headers": {"x-request-id": "kr_6"}, "text": "<html>login</html>"})

    assert isinstance(failure, BadReply)
    assert failure.request_id == "kr_6"
