"""Idempotency-Key over real sockets: one run, one row, the same bytes for every retry."""

import http.client
import json
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pricing.ledger.row import LedgerRow
from pricing.ledger.store import Store
from pricing.ledger.store.scan import scan_rows
from support.forked import Nursery, nursery
from support.lab import Heard, Lab, ledger_url, post
from support.pids import becomes_true
from support.scripted import Answer, ScriptedUpstream
from support.valkey import Server, running

ASK: dict[str, Any] = {"model": "kimi-k3.1-pro", "messages": [{"role": "user", "content": "What is due?"}]}
STREAM = {**ASK, "stream": True, "stream_options": {"include_usage": True}}
USAGE = {"prompt_tokens": 100, "completion_tokens": 5, "total_tokens": 105}


def event(text: str, finish: str | None = None, **more: Any) -> str:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    return f"data: {json.dumps({'id': 'c-1', 'model': 'kimi-k3.1-pro', 'choices': [choice], **more})}\n\n"


def story(*texts: str, last_at_s: float = 0.0) -> Answer:
    """An answer in pieces, the last of which comes late."""
    steps: list[list[Any]] = [[0.0, event(text)] for text in texts[:-1]]
    end = event(texts[-1], "stop") + f"data: {json.dumps({'choices': [], 'usage': USAGE})}\n\ndata: [DONE]\n\n"
    return {"status": 200, "timeline": [*steps, [last_at_s, end]]}


@dataclass(slots=True)
class Case:
    """One test's requests to the shared gateway: one idempotency key, and rows that are told by a tag."""

    made: Lab
    name: str

    @property
    def upstream(self) -> ScriptedUpstream:
        return self.made.upstreams["moonshot"]

    def headers(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        named = {"idempotency-key": self.name, "x-kimi-tags": f"test={self.name}", "x-kimi-target": "moonshot"}
        return {**named, **(more or {})}

    def ask(self, request: Mapping[str, Any] = ASK, *, more: Mapping[str, str] | None = None) -> Heard:
        return post(self.made.gateway.base_url, request, self.headers(more))

    def leaves(self, request: Mapping[str, Any] = ASK) -> http.client.HTTPConnection:
        """Sends a request of a client that will hang up."""
        host = self.made.gateway.base_url.removeprefix("http://").removesuffix("/v1")
        connection = http.client.HTTPConnection(host, timeout=10)
        headers = {"content-type": "application/json", **self.headers()}
        connection.request("POST", "/v1/chat/completions", json.dumps(request), headers)
        return connection

    def rows(self, count: int) -> list[LedgerRow]:
        """The settled rows, once there are that many."""
        found: list[LedgerRow] = []

        def there() -> bool:
            found[:] = rows_of(ledger_url(self.made.gateway), self.name)
            return len(found) >= count and all(row.status != "open" for row in found)

        assert becomes_true(there), found
        return found


def rows_of(url: str, tag: str) -> list[LedgerRow]:
    store = Store(url)
    try:
        return [row for row in scan_rows(store) if row.tags.get("test") == tag]
    finally:
        store.close()


@pytest.fixture
def case(shared_lab: Lab) -> Case:
    return Case(shared_lab, uuid4().hex)


def test_a_folded_answer_comes_twice_with_the_same_bytes_and_one_row(case: Case) -> None:
    before = len(case.upstream.requests)
    case.upstream.add(story("42", " euros"))
    first, second = case.ask(), case.ask()
    assert (first.status, first.json["choices"][0]["message"]["content"]) == (200, "42 euros")
    assert (second.status, second.raw) == (200, first.raw)
    assert second.headers["x-kimi-replayed"] == "1"
    assert "x-kimi-replayed" not in first.headers
    own = {"x-kimi-replayed", "date"}
    assert {name: value for name, value in second.headers.items() if name not in own} == {
        name: value for name, value in first.headers.items() if name not in own
    }
    (row,) = case.rows(1)
    assert row.request_id == first.headers["x-kimi-request-id"] == second.headers["x-kimi-request-id"]
    time.sleep(0.3)
    assert len(case.rows(1)) == 1
    assert len(case.upstream.requests) == before + 1


def test_a_stream_comes_twice_with_the_same_bytes(case: Case) -> None:
    case.upstream.add(story("One", " two", " three"))
    first, second = case.ask(STREAM), case.ask(STREAM)
    assert second.raw == first.raw
    assert (second.done, second.joined("content")) == (True, "One two three")
    assert second.headers["content-type"].startswith("text/event-stream")
    assert second.headers["x-kimi-replayed"] == "1"
    assert len(case.rows(1)) == 1


def test_another_body_is_a_422_and_another_end_user_is_somebody_else(case: Case) -> None:
    case.upstream.add(story("a"), story("b"))
    assert case.ask().status == 200
    other = case.ask({**ASK, "temperature": 1})
    assert (other.status, other.error["code"], other.error["param"]) == (
        422,
        "idempotency_key_reused",
        "Idempotency-Key",
    )
    assert case.ask({**ASK, "user": "anne"}).json["choices"][0]["message"]["content"] == "b"
    assert len(case.rows(2)) == 2


def test_a_key_that_is_none_is_a_400_that_names_the_header(case: Case) -> None:
    bad = case.ask(more={"idempotency-key": "k" * 256})
    assert (bad.status, bad.error["code"], bad.error["param"]) == (400, "invalid_header", "Idempotency-Key")


def test_while_it_runs_a_folded_one_waits_a_streamed_one_is_told_and_an_impatient_one_too(case: Case) -> None:
    before = len(case.upstream.requests)
    case.upstream.add(story("slow", " answer", last_at_s=1.0))
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(case.ask)
        case.upstream.wait_for_requests(before + 1)
        waiting = [pool.submit(case.ask) for _ in range(5)]
        hasty = case.ask(more={"x-stainless-read-timeout": "0.2"})
        assert not first.done()
        assert (hasty.status, hasty.error["code"]) == (409, "request_in_progress")
        assert (hasty.headers["x-should-retry"], hasty.headers["retry-after"]) == ("true", "1")
        raws = {future.result(10).raw for future in [first, *waiting]}
    assert raws == {first.result().raw}
    assert [future.result().headers.get("x-kimi-replayed") for future in waiting] == ["1"] * 5
    assert len(case.upstream.requests) == before + 1
    assert len(case.rows(1)) == 1


def test_while_a_stream_runs_its_retry_is_a_409(case: Case) -> None:
    before = len(case.upstream.requests)
    case.upstream.add(story("slow", " stream", last_at_s=0.6))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(case.ask, STREAM)
        case.upstream.wait_for_requests(before + 1)
        second = case.ask(STREAM)
        assert (second.status, second.error["code"]) == (409, "request_in_progress")
        assert first.result(10).done
    assert case.ask(STREAM).raw == first.result().raw


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        ({"status": 400, "json": {"error": {"message": "no", "type": "invalid_request_error"}}}, 400),
        ({"status": 200, "timeline": [[0.0, event("half")]], "then": "close"}, 502),
    ],
    ids=["refused", "cut"],
)
def test_what_went_wrong_is_not_kept_so_a_retry_tries(case: Case, failure: Answer, status: int) -> None:
    case.upstream.add(failure, story("well"))
    assert case.ask().status == status
    again = case.ask()
    assert (again.status, again.headers.get("x-kimi-replayed")) == (200, None)
    assert case.ask().raw == again.raw
    assert sorted(row.status == "ok" for row in case.rows(2)) == [False, True]


def test_a_request_that_was_refused_may_be_corrected_under_its_key(case: Case) -> None:
    case.upstream.add(story("well"))
    assert case.ask({**ASK, "messages": []}).status == 400
    assert case.ask().status == 200
    assert len(case.rows(1)) == 1


@pytest.mark.parametrize("request_body", [ASK, STREAM], ids=["folded", "streamed"])
def test_a_client_that_leaves_ends_its_attempt_and_the_retry_starts_anew(
    case: Case, request_body: dict[str, Any]
) -> None:
    before = len(case.upstream.requests)
    case.upstream.add(story("never", " heard", last_at_s=20.0), story("heard"))
    connection = case.leaves(request_body)
    case.upstream.wait_for_requests(before + 1)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(case.ask, ASK) if request_body is ASK else None
        time.sleep(0.2)  # the retry of a folded one waits by now
        connection.close()
        case.upstream.wait_for_disconnect(1.5, request=before)
        heard = waiting.result(5) if waiting is not None else None
    if heard is None:
        assert becomes_true(lambda: bool(rows_of(ledger_url(case.made.gateway), case.name)))
        heard = case.ask(request_body)
    assert (heard.status, heard.headers.get("x-kimi-replayed")) == (200, None)
    assert sorted(row.status for row in case.rows(2)) == ["client_disconnected", "ok"]


def test_an_answer_of_more_than_four_mebibytes_is_not_kept(case: Case) -> None:
    message = {"role": "assistant", "content": "x" * (4 * 1024 * 1024)}
    choice = {"index": 0, "finish_reason": "stop", "message": message}
    case.upstream.add({"status": 200, "json": {"id": "c", "model": "kimi-k3.1-pro", "choices": [choice]}})
    assert case.ask().status == 200
    again = case.ask()
    assert (again.status, again.error["code"]) == (409, "result_not_kept")
    assert again.headers["x-should-retry"] == "false"
    assert len(case.rows(1)) == 1


# --- several gateways -----------------------------------------------------------------------------------------

CONFIG = """
[server]
drain_grace_s = 0
[state]
url = "{state}"
[timing]
lease_s = 1.0
adopt_s = 0.3
[[targets]]
name = "moonshot"
dialect = "moonshot"
base_url = "{upstream}"
api_key_env = "IDEMPOTENCY_KEY"
"""


@dataclass(slots=True)
class Pair:
    """One Valkey, one upstream, and a nursery of gateways."""

    directory: Path
    upstream: ScriptedUpstream
    server: Server
    home: Nursery


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="k")))  # short enough for a socket
        upstream = stack.enter_context(ScriptedUpstream())
        server = stack.enter_context(running(directory))
        config = CONFIG.format(state=server.url, upstream=upstream.base_url)
        home = stack.enter_context(nursery(directory, config, {"IDEMPOTENCY_KEY": "sk-test"}))
        yield Pair(directory, upstream, server, home)


def test_gateways_share_answers_survive_each_other_and_go_on_without_the_state(pair: Pair) -> None:
    one, two = pair.home.start(), pair.home.start()
    pair.upstream.add(story("shared"))
    first = post(one.base_url, ASK, {"idempotency-key": "shared"})
    second = post(two.base_url, ASK, {"idempotency-key": "shared"})
    assert (second.raw, second.headers["x-kimi-replayed"]) == (first.raw, "1")

    pair.upstream.add(story("never", " heard", last_at_s=20.0), story("heard"))
    with ThreadPoolExecutor(2) as pool:
        lost = pool.submit(post, one.base_url, ASK, {"idempotency-key": "killed"})
        pair.upstream.wait_for_requests(2)
        waiting = pool.submit(post, two.base_url, ASK, {"idempotency-key": "killed"})
        time.sleep(1.2)  # longer than a lease: it is renewed
        assert len(pair.upstream.requests) == 2
        pair.home.kill(one, signal.SIGKILL)
        with pytest.raises((http.client.HTTPException, OSError)):
            lost.result(10)
        assert waiting.result(10).json["choices"][0]["message"]["content"] == "heard"

    pair.server.stop()
    pair.upstream.add(story("alone"))
    alone = post(two.base_url, ASK, {"idempotency-key": "alone", "x-kimi-tags": "test=alone"})
    assert (alone.status, alone.headers["x-kimi-idempotency"]) == (200, "unavailable")
    url = f"sqlite:///{pair.directory / 'kimi-ledger.db'}"
    assert becomes_true(lambda: [row.anomaly for row in rows_of(url, "alone")] == ["state_unavailable"])
