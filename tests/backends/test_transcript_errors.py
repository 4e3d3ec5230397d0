"""Every recorded error answer of four real engines is read as the right fault, without what no client may see.

The samples are `recorded`, 2026-11-30: vLLM 0.32.0, SGLang 0.5.23, llama.cpp b11549, transformers serve 5.19.0.
"""

import re

import pytest

from backends.faults import FaultKind, fault_from_response
from support.transcripts import exchanges

FILES = (
    "vllm-chat-1",
    "vllm-errors",
    "vllm-tools",
    "sglang-chat",
    "sglang-errors",
    "sglang-tools",
    "llamacpp-errors",
    "llamacpp-tools",
    "transformers-serve",
)


@pytest.mark.parametrize("file", FILES)
def test_no_recorded_error_leaks_paths_tracebacks_or_input(file: str) -> None:
    failed = [exchange for exchange in exchanges(file).values() if exchange.status >= 400]
    assert failed
    for exchange in failed:
        if exchange.parts[0]:
            fault = fault_from_response(exchange.status, exchange.headers, exchange.parts[0], 0.0)
            assert fault.status == exchange.status
            assert 0 < len(fault.message) <= 500
            assert not re.search(r"SITE_PACKAGES|\.py|File \"|'input'|Traceback|\n", fault.message), exchange.name


CONTEXT, REQUEST, AUTH, SERVER = FaultKind.CONTEXT, FaultKind.REQUEST, FaultKind.AUTH, FaultKind.SERVER


@pytest.mark.parametrize(
    ("file", "name", "kind", "message", "param"),
    [
        (
            "vllm-errors",
            "err-too-long-prompt",
            CONTEXT,
            "This model's maximum context length is 8192",
            "input_tokens",
        ),
        ("vllm-errors", "err-max-tokens-too-large", CONTEXT, "max_tokens=100000 cannot be greater", "max_tokens"),
        ("vllm-errors", "err-bad-model", REQUEST, "The model `nope` does not exist.", "model"),
        ("vllm-errors", "err-bad-json", REQUEST, "JSON decode error", None),
        ("vllm-errors", "err-no-messages", REQUEST, "messages: Field required", "messages"),
        ("vllm-errors", "err-max-tokens-string", REQUEST, "max_tokens: Input should be a valid", "max_tokens"),
        ("vllm-errors", "err-content-number", REQUEST, "messages[0].content: Input should", "messages[0].content"),
        ("vllm-errors", "err-no-key", AUTH, "Unauthorized", None),
        ("vllm-errors", "err-unknown-path", REQUEST, "Not Found", None),
        ("vllm-errors", "err-method", REQUEST, "Method Not Allowed", None),
        ("vllm-chat-1", "effort-medium", REQUEST, "Kimi K3 supports thinking_effort values", "thinking_effort"),
        ("vllm-tools", "tools-named-unknown", REQUEST, "The tool specified in `tool_choice` does", "tool_choice"),
        ("vllm-failures", "a new request 0.3 s after SIGTERM", SERVER, "cannot schedule new futures", None),
        ("sglang-errors", "err-too-long-prompt-stream", CONTEXT, "The input (9052 tokens) is longer", None),
        (
            "sglang-errors",
            "err-max-tokens-too-large",
            CONTEXT,
            "max_completion_tokens is too large: 100000.",
            None,
        ),
        (
            "sglang-errors",
            "err-bad-role",
            REQUEST,
            "messages[0].role: Value error, 'role' must be",
            "messages[0].role",
        ),
        ("sglang-errors", "err-not-an-object", SERVER, "Internal Server Error", None),
        ("sglang-errors", "err-wrong-key", AUTH, "Unauthorized", None),
        ("sglang-chat", "effort-banana", REQUEST, "reasoning_effort: Input should be 'none',", "reasoning_effort"),
        ("sglang-failures", "answer 3", FaultKind.OVERLOAD, "The request queue is full.", None),
        ("llamacpp-errors", "err-too-long-prompt", CONTEXT, "request (9052 tokens) exceeds the available", None),
        ("llamacpp-errors", "err-bad-json", REQUEST, "[json.exception.parse_error.101] parse error", None),
        ("llamacpp-errors", "err-n-0", REQUEST, "Field 'n': Value must be between 1", None),
        ("llamacpp-errors", "err-image", SERVER, "image input is not supported", None),
        ("llamacpp-errors", "err-no-key", AUTH, "Invalid API Key", None),
        ("llamacpp-tools", "tools-none", SERVER, "The model produced output that does not match", None),
        ("transformers-serve", "unknown-fields", REQUEST, "Unexpected fields in the request: {'foo'}", None),
        ("transformers-serve", "err-empty-body", REQUEST, "Field required", None),
        ("transformers-serve", "err-no-messages", SERVER, "Internal Server Error", None),
    ],
)
def test_recorded_errors(file: str, name: str, kind: FaultKind, message: str, param: str | None) -> None:
    exchange = exchanges(file)[name]
    fault = fault_from_response(exchange.status, exchange.headers, exchange.body, 0.0)
    assert (fault.kind, fault.param) == (kind, param)
    assert fault.message.startswith(message)
    assert fault.code in (str(exchange.status), None)


@pytest.mark.parametrize(
    ("file", "name", "asked"),
    [
        ("vllm-errors", "err-too-long-prompt", 9052),
        ("vllm-errors", "err-max-tokens-too-large", 100000),
        ("sglang-errors", "err-too-long-prompt", 9052),
        ("sglang-errors", "err-max-tokens-too-large", 100000),
        ("llamacpp-errors", "err-too-long-prompt-stream", 9052),
    ],
)
def test_recorded_overflows_have_their_counts(file: str, name: str, asked: int) -> None:
    exchange = exchanges(file)[name]
    fault = fault_from_response(exchange.status, exchange.headers, exchange.body, 0.0)
    assert (fault.context_limit, fault.context_tokens) == (8192, asked)
