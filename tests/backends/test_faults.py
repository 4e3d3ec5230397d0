"""Error answers of every shape become one fault: the right kind, its words, the wait that was asked for."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.faults import Fault, FaultKind, fault_from_error_object, fault_from_response
from backends.json import encode
from support.cases import case

NOW = 1_796_040_000.0  # Mon, 30 Nov 2026 12:00:00 GMT


def answered(status: int, body: Any = None, **headers: str) -> Fault:
    data = body if isinstance(body, bytes) else encode(body)
    return fault_from_response(status, {name.replace("_", "-"): text for name, text in headers.items()}, data, NOW)


def scripted(case_id: str, attempt: int = 0) -> Fault:
    upstream = case(case_id)["given"]["upstream"][attempt]
    body = upstream["text"].encode() if "text" in upstream else upstream["json"]
    return fault_from_response(
        upstream["status"], upstream.get("headers", {}), body if isinstance(body, bytes) else encode(body), NOW
    )


def error(**fields: Any) -> dict[str, Any]:
    return {"error": fields}


MOONSHOT = [  # platform.kimi.ai/docs/api/errors
    (400, "invalid_request_error", "invalid temperature: only 1 is allowed for this model", FaultKind.REQUEST),
    (400, "invalid_request_error", "Input token length too long", FaultKind.CONTEXT),
    (400, "invalid_request_error", "Your request exceeded model token limit : 1048576", FaultKind.CONTEXT),
    (400, "content_filter", "rejected: high risk", FaultKind.FILTER),
    (401, "invalid_authentication_error", "Invalid Authentication", FaultKind.AUTH),
    (401, "incorrect_api_key_error", "Incorrect API key provided", FaultKind.AUTH),
    (403, "permission_denied_error", "The API you are accessing is not open", FaultKind.AUTH),
    (403, "permission_denied_error", "Your account is suspended, please check your plan", FaultKind.QUOTA),
    (403, "exceeded_current_quota_error", "no", FaultKind.QUOTA),
    (404, "resource_not_found_error", "Not found the model nope", FaultKind.REQUEST),
    (413, "", "Request exceeds the maximum size", FaultKind.REQUEST),
    (429, "engine_overloaded_error", "engine busy", FaultKind.OVERLOAD),
    (429, "rate_limit_reached_error", "reached TPD limit", FaultKind.RATE),
    (429, "exceeded_current_quota_error", "no", FaultKind.QUOTA),
    (429, "", "Your account is suspended due to insufficient balance", FaultKind.QUOTA),
    (429, "", "The engine is currently overloaded, please try again later", FaultKind.OVERLOAD),
    (429, "", "slow down", FaultKind.RATE),
    (429, "", "Rate limit reached; see the billing page to raise it", FaultKind.RATE),
    (499, "client_closed_request", "", FaultKind.SERVER),
    (500, "server_error", "", FaultKind.SERVER),
    (500, "unexpected_output", "invalid state transition", FaultKind.SERVER),
    (503, "server_unavailable", "", FaultKind.OVERLOAD),
    (504, "", "", FaultKind.TIMEOUT),
]


@pytest.mark.parametrize(("status", "type_", "message", "kind"), MOONSHOT)
def test_moonshots_documented_errors(status: int, type_: str, message: str, kind: FaultKind) -> None:
    fault = answered(status, error(type=type_, message=message))
    assert (fault.kind, fault.status, fault.type) == (kind, status, type_ or None)
    assert fault.message == message or not message


@pytest.mark.parametrize(
    ("status", "error_type", "message", "kind"),
    [
        (400, None, "bad", FaultKind.REQUEST),
        (401, None, "No auth credentials found", FaultKind.AUTH),
        (402, "payment_required", "Insufficient credits", FaultKind.QUOTA),
        (403, None, "moderation: flagged input", FaultKind.FILTER),
        (404, None, "No endpoints found", FaultKind.REQUEST),
        (408, None, "timeout", FaultKind.TIMEOUT),
        (413, None, "too large", FaultKind.REQUEST),
        (422, None, "bad", FaultKind.REQUEST),
        (429, "rate_limit_exceeded", "slow down", FaultKind.RATE),
        (500, None, "oops", FaultKind.SERVER),
        (502, "provider_unavailable", "provider went away", FaultKind.SERVER),
        (503, "provider_overloaded", "busy", FaultKind.OVERLOAD),
        (524, None, "timeout", FaultKind.TIMEOUT),
        (529, None, "overloaded", FaultKind.OVERLOAD),
        (400, "context_length_exceeded", "too long", FaultKind.CONTEXT),
    ],
)
def test_openrouters_errors_by_status_and_inside_a_200(
    status: int, error_type: str | None, message: str, kind: FaultKind
) -> None:
    body = error(code=status, message=message, metadata={"error_type": error_type}) | {"user_id": "u"}
    for fault in (answered(status, body), answered(200, body), fault_from_error_object(body)):
        assert (fault.kind, fault.status, fault.code) == (kind, status, str(status))
        assert fault.type == error_type


WINDOW = "This model's maximum context length is 8192 tokens. However, "


@pytest.mark.parametrize(
    ("message", "limit", "asked"),
    [
        (WINDOW + "your prompt contains 9052 input tokens, which exceeds", 8192, 9052),  # vLLM 0.32.0
        (WINDOW + "your prompt contains 40000 characters", 8192, None),
        (WINDOW + "you requested 9052 tokens (52 in the messages, 9000 in the completion)", 8192, 9052),
        ("max_tokens=100000 cannot be greater than max_model_len=8192. Please request fewer", 8192, 100000),
        # SGLang 0.5.23
        ("The input (9052 tokens) is longer than the model's context length (8192 tokens).", 8192, 9052),
        ("max_completion_tokens is too large: 9.This model supports at most 8 completion tokens.", 8, 9),
        # llama.cpp b11549
        ("request (9052 tokens) exceeds the available context size (8192 tokens), try increasing it", 8192, 9052),
        # OpenRouter
        (
            "This endpoint's maximum context length is 1,048 tokens. However, you requested about 1,050 tokens",
            1048,
            1050,
        ),
        # Moonshot
        ("Your request exceeded model token limit : 262144", 262144, None),
        ("Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)", 262144, 300000),
    ],
)
def test_an_overflow_is_recognised_with_its_counts_whoever_says_it(
    message: str, limit: int, asked: int | None
) -> None:
    fault = answered(400, error(message=message, code=400))
    assert (fault.kind, fault.context_limit, fault.context_tokens) == (FaultKind.CONTEXT, limit, asked)


def test_sglangs_flat_overflow_of_the_case() -> None:
    fault = scripted("ctx-01")
    assert (fault.kind, fault.context_limit, fault.context_tokens) == (FaultKind.CONTEXT, 1048576, 1050001)
    assert (fault.code, fault.type, fault.param) == ("400", "BadRequestError", None)
    assert "1048576" in fault.message


def test_llamacpps_counts_come_from_its_own_fields() -> None:
    fault = answered(
        400, error(type="exceed_context_size_error", message="no", n_prompt_tokens=9, n_ctx=8, code=400)
    )
    assert (fault.kind, fault.context_limit, fault.context_tokens) == (FaultKind.CONTEXT, 8, 9)


def test_the_status_decides_before_the_text() -> None:
    assert answered(500, error(message="maximum context length is 5 tokens")).kind is FaultKind.SERVER
    assert answered(401, error(message="rate limit, account suspended")).kind is FaultKind.AUTH
    assert answered(400, error(message="you are being rate limited")).kind is FaultKind.REQUEST


def test_an_empty_account_is_final_whatever_its_headers_say() -> None:
    fault = scripted("err-01")
    assert (fault.kind, fault.retry_after_s) == (FaultKind.QUOTA, None)
    assert fault.message == "account [redacted] [redacted] suspended: insufficient balance"
    assert answered(429, error(type="exceeded_current_quota_error"), retry_after="5").retry_after_s is None


def test_a_content_refusal_keeps_its_param_and_has_a_code_that_is_a_string() -> None:
    fault = scripted("err-06")
    assert (fault.kind, fault.param, fault.code, fault.type) == (
        FaultKind.FILTER,
        "prompt",
        "400",
        "content_filter",
    )


def test_a_bare_string_is_an_error() -> None:
    fault = answered(401, {"error": "Unauthorized"})
    assert (fault.kind, fault.message, fault.type, fault.code) == (FaultKind.AUTH, "Unauthorized", None, None)
    assert fault_from_error_object("worker died").message == "worker died"


def test_moonshots_unknown_route_has_a_string_and_a_code_that_is_no_status() -> None:
    fault = answered(404, {"code": 5, "error": "url.not_found", "message": "没找到对象", "method": "GET"})
    assert (fault.kind, fault.message, fault.code) == (FaultKind.REQUEST, "没找到对象", "5")


def test_fastapis_details_are_read_without_the_input() -> None:
    assert answered(404, {"detail": "Not Found"}).message == "Not Found"
    findings = [
        {"type": "missing", "loc": ["body", "messages", 0, "role"], "msg": "Field required", "input": "prompt"}
    ]
    fault = answered(422, {"detail": findings})
    assert (fault.kind, fault.message) == (FaultKind.REQUEST, "messages[0].role: Field required")
    assert fault.param == "messages[0].role"


def test_an_overload_inside_a_200_stream_is_one() -> None:
    # recorded: SGLang 0.5.23, 2026-11-30
    body = error(
        object="error", message="The request queue is full.", type="SERVICE_UNAVAILABLE", param=None, code=503
    )
    fault = fault_from_error_object(body)
    assert (fault.kind, fault.status, fault.code) == (FaultKind.OVERLOAD, 503, "503")


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (error(type="BadRequestError", message="bad"), FaultKind.REQUEST),
        (error(type="ServiceUnavailableError", message="full"), FaultKind.OVERLOAD),
        (error(type="InternalServerError", message="died"), FaultKind.SERVER),
        (error(type="rate_limit_reached_error", message="x"), FaultKind.RATE),
        (error(type="authentication_error", message="x"), FaultKind.AUTH),
        (
            error(message="The input (9 tokens) is longer than the model's context length (8 tokens)."),
            FaultKind.CONTEXT,
        ),
        (error(message="who knows"), FaultKind.SERVER),
        (error(), FaultKind.SERVER),
        ({}, FaultKind.SERVER),
        (None, FaultKind.SERVER),
        ([error(code=429, message="x")], FaultKind.RATE),
    ],
)
def test_without_a_status_the_names_decide(body: Any, kind: FaultKind) -> None:
    assert fault_from_error_object(body).kind is kind


PAGE = b"<html><head><title>502 Bad Gateway</title></head><body><center>nginx</center></body></html>"


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (502, PAGE, FaultKind.SERVER, "the upstream answered 502 with an HTML page (502 Bad Gateway)"),
        (503, PAGE, FaultKind.SERVER, "the upstream answered 503 with an HTML page (502 Bad Gateway)"),
        (504, b"\n<!DOCTYPE html><html></html>", FaultKind.TIMEOUT, "the upstream answered 504 with an HTML page"),
        (503, b"", FaultKind.SERVER, "the upstream answered 503 without a body"),
        (429, b"", FaultKind.RATE, "the upstream answered 429 without a body"),
        (500, b"Internal Server Error", FaultKind.SERVER, "Internal Server Error"),
        (500, b'{"error":{"message":"x', FaultKind.SERVER, "the upstream answered 500 with JSON that was cut"),
        (500, b"\xff\xfe", FaultKind.SERVER, "\ufffd\ufffd"),
        (400, b'{"a":1}', FaultKind.REQUEST, "the upstream answered 400 and gave no reason"),
        (301, b"", FaultKind.SERVER, "the upstream answered 301 without a body"),
        (200, b"{}", FaultKind.SERVER, "the upstream gave no reason"),
    ],
)
def test_bodies_that_are_no_error_object(status: int, body: bytes, kind: FaultKind, message: str) -> None:
    fault = answered(status, body)
    assert (fault.kind, fault.message) == (kind, message)


def test_vllms_place_in_the_body_becomes_the_field() -> None:
    fault = answered(400, error(message="1 validation error:\n  bad", type="Bad Request", param="body.max_tokens"))
    assert fault.param == "max_tokens"
    assert answered(400, error(message="x", param="functionDeclarations")).param == "functionDeclarations"


def test_words_are_bounded() -> None:
    fault = answered(400, error(message="x " * 10**6, type="t" * 999, code="c" * 999, param="p " * 999))
    assert [len(word or "") for word in (fault.message, fault.type, fault.code, fault.param)] == [500, 64, 64, 200]


NAMES = ["error", "message", "type", "code", "param", "detail", "metadata", "loc", "n_ctx"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)


@given(JSON, st.sampled_from([0, 200, 301, 400, 401, 403, 404, 418, 429, 500, 503, 599]))
@settings(max_examples=200)
def test_any_json_is_read_as_some_fault(body: Any, status: int) -> None:
    for fault in (
        fault_from_response(status, {}, encode(body), NOW),
        fault_from_error_object(body, status=status),
    ):
        assert fault.message
        assert fault.code is None or isinstance(fault.code, str)
