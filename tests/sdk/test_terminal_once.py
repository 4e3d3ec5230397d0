"""`kimi-chat` for scripts: one prompt in, one answer out, exit codes. In process, real sockets."""

import io
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typing_extensions import override

from backends.json import as_list, as_object, encode
from kimi_sdk import Chat
from kimi_sdk.__main__ import main
from support.scripted import ScriptedUpstream, dead_port


def events(*deltas: dict[str, Any], finish: str = "stop") -> dict[str, Any]:
    """A streamed answer."""
    chunks = [{"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": finish, "usage": usage}]}
    kimi = {"choices": [], "usage": usage, "kimi": {"request_id": "kr_1", "cost_usd": "0.0001"}}
    whole: list[dict[str, Any]] = [*chunks, last, kimi]
    lines = [{"id": "c", "model": "kimi-k3.1-pro", **chunk} for chunk in whole]
    text = "".join(f"data: {encode(line).decode()}\n\n" for line in lines) + "data: [DONE]\n\n"
    return {"status": 200, "sse_text": text}


ANSWER = events({"reasoning_content": "Hm."}, {"content": "384,400"}, {"content": " km\x1b[0m"})
Run = Callable[..., int]


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with ScriptedUpstream([ANSWER], repeat_last=True) as server:
        yield server


class Piped(io.TextIOWrapper):
    """Standard input that is no terminal."""

    def __init__(self, data: bytes) -> None:
        super().__init__(io.BytesIO(data), encoding="utf-8")


class Typed(Piped):
    """Standard input that is a terminal."""

    @override
    def isatty(self) -> bool:
        return True


@pytest.fixture
def run(upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command with arguments; gives its exit code."""

    def once(*arguments: str, stdin: bytes | io.TextIOBase | None = None) -> int:
        monkeypatch.setenv("KIMI_BASE_URL", upstream.base_url)
        monkeypatch.delenv("KIMI_API_KEY", raising=False)
        monkeypatch.setattr(sys, "argv", ["kimi-chat", *arguments])
        given = Piped(stdin) if isinstance(stdin, bytes) else stdin
        monkeypatch.setattr(sys, "stdin", given or Typed(b""))
        return main()

    return once


def content(upstream: ScriptedUpstream) -> Any:
    turns = as_list(upstream.requests[-1].json["messages"])
    return (as_object(turns[-1]) or {})["content"]


def test_one_prompt_on_standard_input_gives_the_answers_text_and_nothing_else(
    run: Run, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(stdin=b"How far is the Moon?\n@/etc/passwd") == 0

    assert capsys.readouterr() == ("384,400 km\x1b[0m\n", "")
    assert content(upstream) == "How far is the Moon?\n@/etc/passwd"


def test_a_prompt_of_the_command_line_names_files_and_what_is_piped_stands_behind_it(
    run: Run, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("one\n")
    assert run("What", "is", f"@{tmp_path}/a.txt", "?", stdin=b"piped @nothing.txt") == 0

    assert content(upstream) == [
        {"type": "text", "text": f"What is @{tmp_path}/a.txt ?"},
        {"type": "text", "text": '<file name="a.txt">\none\n</file>'},
        {"type": "text", "text": "piped @nothing.txt"},
    ]
    assert run("Plain?", stdin=b" \n") == 0
    assert content(upstream) == "Plain?"
    assert run("From a terminal?") == 0
    assert content(upstream) == "From a terminal?"


def test_options_go_into_the_request(run: Run, upstream: ScriptedUpstream) -> None:
    options = ["--system", "Be brief.", "--model", "kimi-k3", "--effort", "low", "--max-completion-tokens", "2000"]
    assert run("Hi", *options) == 0

    sent = upstream.requests[-1].json
    assert (sent["model"], sent["reasoning_effort"], sent["max_completion_tokens"]) == ("kimi-k3", "low", 2000)
    assert as_list(sent["messages"])[0] == {"role": "system", "content": "Be brief."}
    assert upstream.requests[-1].headers.get("authorization") is None


def test_a_saved_conversation_goes_on_with_another_effort_where_one_is_named(
    run: Run, upstream: ScriptedUpstream, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.json"
    with Chat(system="s", effort="low", base_url=upstream.base_url) as chat:
        chat.ask("First?")
        chat.save(kept)

    for arguments, effort in (([], "low"), (["--effort", "high"], "high")):
        assert run("And?", "--load", str(kept), *arguments) == 0
        sent = upstream.requests[-1].json
        assert [(as_object(turn) or {})["role"] for turn in as_list(sent["messages"])] == [
            "system", "user", "assistant", "user",
        ]  # fmt: skip
        assert sent["reasoning_effort"] == effort


@pytest.mark.parametrize(
    ("arguments", "stdin", "code", "reason"),
    [
        ([], b"", 2, "the question must not be empty"),
        ([], b"caf\xe9", 2, "standard input is no text in UTF-8"),
        (["@no/such.png"], None, 2, "there is no file no/such.png"),
        (["Hi", "--base-url", "nowhere"], None, 2, "must be a URL"),
        (["Hi", "--max-cost", "much"], None, 2, "an amount of money"),
        (["Hi", "--load", "no/such.json"], None, 2, "cannot read no/such.json: No such file"),
        (["Hi", "--load", "no/such.json", "--model", "kimi-k3"], None, 2, "--model cannot be given with --load"),
        (["Hi", "--max-cost", "0.000001", "--max-completion-tokens", "16000"], None, 1, "max_cost"),
    ],
)
def test_what_cannot_be_asked_is_said_with_its_exit_code(
    run: Run, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str],
    arguments: list[str], stdin: bytes | None, code: int, reason: str,
) -> None:  # fmt: skip
    assert run(*arguments, stdin=stdin) == code

    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kimi-chat: ")
    assert reason in err
    assert upstream.requests == []


def test_a_failed_call_ends_with_1(
    run: Run, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    with dead_port() as port:
        assert run("Hi", "--base-url", f"http://127.0.0.1:{port}/v1") == 1
    assert "no answer from" in capsys.readouterr().err
    upstream.forget()
    upstream.add({"status": 400, "json": {"error": {"type": "invalid_request_error", "message": "never heard"}}})
    assert run("Hi") == 1
    assert "never heard" in capsys.readouterr().err


def test_an_answer_that_breaks_off_ends_with_1_after_what_came(
    run: Run, upstream: ScriptedUpstream, capsys: pytest.CaptureFixture[str]
) -> None:
    upstream.forget()
    whole = str(events({"content": "Half an ans"})["sse_text"])
    upstream.add({"status": 200, "sse_text": whole.partition("\n\n")[0] + "\n\n", "then": "close"})
    assert run("Hi") == 1

    out, err = capsys.readouterr()
    assert out == "Half an ans\n"
    assert err.startswith("kimi-chat: the answer broke off: ")
    assert "chat.resume()" not in err  # there is no chat to resume


def command(upstream: ScriptedUpstream, stdout: Any, **environ: str) -> subprocess.CompletedProcess[bytes]:
    held = {"KIMI_BASE_URL": upstream.base_url, "PATH": "/usr/bin", **environ}
    return subprocess.run(
        [sys.executable, "-m", "kimi_sdk", "Hi"],
        stdout=stdout, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=held, timeout=20,
    )  # fmt: skip


def test_an_answer_that_cannot_be_written_ends_with_1_and_no_traceback(upstream: ScriptedUpstream) -> None:
    with open("/dev/full", "wb") as full:
        done = command(upstream, full)

    assert (done.returncode, done.stderr.decode()) == (
        1, "kimi-chat: input or output failed: No space left on device\n",
    )  # fmt: skip


def test_letters_that_the_terminal_does_not_have_do_not_end_the_answer(upstream: ScriptedUpstream) -> None:
    upstream.forget()
    upstream.add(events({"content": "384 400 km — far"}))
    done = command(upstream, subprocess.PIPE, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")

    assert (done.returncode, done.stdout, done.stderr) == (0, b"384 400 km \\u2014 far\n", b"")


class Interrupted(Piped):
    """Ctrl-C while it is read."""

    @property
    @override
    def buffer(self) -> Any:
        raise KeyboardInterrupt


def test_ctrl_c_ends_with_130(run: Run) -> None:
    assert run(stdin=Interrupted(b"Hi")) == 130


def test_a_note_is_told_beside_the_answer(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("Hi", "--max-completion-tokens", "200") == 0

    out, err = capsys.readouterr()
    assert out == "384,400 km\x1b[0m\n"
    assert err.startswith("kimi-chat: note: max_completion_tokens 200")
