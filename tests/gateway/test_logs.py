"""The log: one line per request, no prompt, no secret, and never in the way of the event loop."""

import io
import json
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typing_extensions import override

from kimi_gateway.logs import (
    Format,
    LineWriter,
    Log,
    LogHandler,
    Redactor,
    choose_format,
    one_line,
    request_line,
    request_text,
)
from pricing.ledger.row import AttemptRecord, LedgerRow

ROW = LedgerRow(
    request_id="kr_1",
    started_at=0.0,
    key="team-a",
    route="kimi-k3.1-pro",
    target="moonshot",
    model="kimi-k3.1-pro",
    effort="high",
    status="ok",
    http_status=200,
    attempts=[AttemptRecord(target="moonshot", dialect="moonshot", model="kimi-k3.1-pro", start_ms=0)],
    prompt_tokens=100,
    cached_tokens=80,
    completion_tokens=20,
    cost_nano=76_000,
    ttft_ms=420,
    total_ms=3100,
    tags={"project": "secret plans"},
    raw_usage={"prompt_tokens": 100},
)


@contextmanager
def log_to(stream: TextIO, format: Format) -> Iterator[Log]:
    log = Log(LineWriter(stream, format=format), wall=lambda: 1_796_040_000.25)
    yield log
    log.close()


def written(format: Format, *rows: LedgerRow) -> str:
    stream = io.StringIO()
    with log_to(stream, format) as log:
        for row in rows:
            log.settled(row)
    return stream.getvalue()


def test_a_request_is_one_json_line() -> None:
    found: dict[str, Any] = json.loads(written("json", ROW))
    assert found == {
        "time": "2026-11-30T12:00:00.250Z",
        "level": "info",
        "event": "request",
        "request_id": "kr_1",
        "key": "team-a",
        "route": "kimi-k3.1-pro",
        "target": "moonshot",
        "model": "kimi-k3.1-pro",
        "tier": "standard",
        "effort": "high",
        "stream": False,
        "status": "ok",
        "http_status": 200,
        "attempts": 1,
        "input": 20,
        "cache_read": 80,
        "output": 20,
        "cost_usd": "0.000076",
        "ttft_ms": 420,
        "total_ms": 3100,
    }


def test_a_request_is_one_readable_line() -> None:
    assert written("text", ROW) == (
        "12:00:00Z ok 200 kimi-k3.1-pro via moonshot key=team-a effort=high input=20 cache_read=80 output=20 "
        "$0.000076 first 0.42s total 3.10s kr_1\n"
    )


def test_a_failed_unpriced_request_says_so() -> None:
    row = LedgerRow(request_id="kr_2", started_at=0.0, status="error", http_status=502)
    row.error_type, row.error_code, row.message = "upstream_error", "bad_gateway", "the upstream\nbroke"
    assert request_text(row).endswith("no tokens unpriced kr_2 bad_gateway: the upstream broke")
    assert request_line(row, "").error == "the upstream\nbroke"
    assert request_line(row, "").cost_usd is None


@given(st.text(max_size=60))
def test_no_error_text_makes_a_second_line_or_a_colour(text: str) -> None:
    row = LedgerRow(request_id="kr_2", started_at=0.0, status="error", message=text)
    assert len(one_line(text).splitlines()) <= 1
    assert "\x1b" not in request_text(row)
    assert len(written("json", row).splitlines()) == 1


@pytest.mark.parametrize("format", ["json", "text"])
def test_known_secrets_and_what_looks_like_a_key_are_hidden(format: Format) -> None:
    stream = io.StringIO()
    with log_to(stream, format) as log:
        log.hide(["planted-secret", 'quo"ted\\one', "ab"])
        log.event(
            'planted-secret and quo"ted\\one and sk-unknown-key-1234 and Bearer abc.def', level="error", x="ab"
        )
        log.event("planted-secret-longer")
    text = stream.getvalue()
    for hidden in ("planted", "ted", "sk-unknown", "abc.def"):
        assert hidden not in text
    assert "ab" in text
    assert text.count("[secret]") == 5


def test_a_secret_that_begins_another_does_not_leave_its_end_standing() -> None:
    assert Redactor(["abcd", "abcdefgh"]).clean("x abcdefgh y abcd") == "x [secret] y [secret]"


def test_what_libraries_log_holds_neither_traceback_nor_the_exceptions_text() -> None:
    stream = io.StringIO()
    logger = logging.getLogger("test.library")
    logger.propagate = False
    with log_to(stream, "json") as log:
        handler = LogHandler(log)
        logger.addHandler(handler)
        try:
            raise ValueError("the prompt: tell me a secret")
        except ValueError:
            logger.exception("something broke\nfuture: ValueError('the prompt')")
        logger.info("not shown")
        logger.warning("odd %s", "thing")
        logger.warning("bad format %d", "x")
        logger.removeHandler(handler)
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["message"] for line in lines] == ["something broke", "odd thing", "bad format %d"]
    assert lines[0]["exception"].startswith("ValueError at test_logs:")
    assert lines[0]["level"] == "error"
    assert "prompt" not in stream.getvalue()


def test_a_reader_that_stops_reading_never_blocks_and_hears_what_it_missed() -> None:
    read_end, write_end = os.pipe()
    stream = os.fdopen(write_end, "w")
    writer = LineWriter(stream, format="json", max_waiting=100)
    started = time.monotonic()
    for number in range(20_000):
        writer.write(f"{number} " + "x" * 100)
    assert time.monotonic() - started < 5
    assert writer.dropped > 0
    got: list[bytes] = []

    def read() -> None:
        while data := os.read(read_end, 65536):
            got.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    writer.close(5)
    stream.close()
    reader.join(5)
    os.close(read_end)
    assert b"log lines dropped because the reader was too slow" in b"".join(got)


class Gone(io.StringIO):
    """A stream whose reader has left."""

    def __init__(self) -> None:
        super().__init__()
        self.attempts = 0

    @override
    def write(self, text: str) -> int:
        self.attempts += 1
        raise BrokenPipeError


def test_a_reader_that_is_gone_is_no_reason_to_stop() -> None:
    stream = Gone()
    writer = LineWriter(stream, format="text")
    for _ in range(10):
        writer.write("line")
        time.sleep(0.001)
    started = time.monotonic()
    writer.close(5)
    assert time.monotonic() - started < 4
    assert stream.attempts == 1


def test_the_format_follows_the_stream_unless_chosen() -> None:
    assert choose_format("auto", io.StringIO()) == "json"
    assert choose_format("text", io.StringIO()) == "text"
    assert choose_format("json", io.StringIO()) == "json"
