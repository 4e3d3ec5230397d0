"""The terminal chat on a real pseudo-terminal, against the emulator and against scripted answers."""

import re
from pathlib import Path

from backends.emulator.app import Emulator, EmulatorConfig
from backends.json import as_list, as_object, decode, encode
from kimi_sdk import Chat
from support.asgi import serve
from support.exchange import Exchange
from support.scripted import ScriptedUpstream, play
from support.terminal import Terminal


def chunk(delta: object, finish: str | None = None) -> str:
    choices = [{"index": 0, "delta": delta, "finish_reason": finish}]
    return f"data: {encode({'id': 'c', 'model': 'kimi-k3.1-pro', 'choices': choices}).decode()}\n\n"


USAGE = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
KIMI = {"request_id": "kr_1", "cost_usd": "0.0001", "effort": "unset", "target": "t"}
END = (
    chunk({}, "stop")
    + f"data: {encode({'choices': [], 'usage': USAGE, 'kimi': KIMI}).decode()}\n\ndata: [DONE]\n\n"
)


async def answer(exchange: Exchange) -> None:
    """Repeats what it was told; a question that begins with `slow` never ends, one with `cut` breaks off."""
    turns = [as_object(turn) or {} for turn in as_list(exchange.received.json["messages"])]
    said = encode(turns[-1]["content"]).decode()
    text = chunk({"reasoning_content": "Thinking of it.\nTwice."}) + chunk({"content": f"You said {said}"})
    if said.startswith('"slow'):
        await exchange.head(200, [("Content-Type", "text/event-stream"), ("Transfer-Encoding", "chunked")])
        await exchange.chunk(text.encode())
        await exchange.hold()
    if said.startswith('"cut'):
        await play({"status": 200, "sse_text": text, "then": "close"}, exchange)
        return
    await play({"status": 200, "sse_text": text + END}, exchange)


def types_lines(terminal: Terminal, upstream: ScriptedUpstream) -> None:
    """Lines that go on, fenced ones, and what is pasted."""
    terminal.press("one\\\r")
    terminal.press("two\r")
    terminal.wait_for(r'You said "one\ntwo"')
    terminal.press('"""\rthree\r/quit\r"""\r')
    terminal.wait_for(r'You said "three\n/quit"')
    terminal.wait_for("USD")
    terminal.press("pasted\rin one\rpiece")
    terminal.wait_for("piece")
    assert len(upstream.requests) == 3, "what was pasted waits for Enter"
    terminal.press("\r")
    terminal.wait_for(r'You said "pasted\nin one\npiece"')
    terminal.wait_for("USD")
    terminal.press("\x1b[200~bracketed\r@my notes.md\x1b[201~\r")
    terminal.wait_for(r'You said "bracketed\n@my notes.md"')
    terminal.wait_for("USD")


def interrupts(terminal: Terminal, upstream: ScriptedUpstream) -> None:
    """Ctrl-C in answers and in lines, an answer that breaks off, and what is no command."""
    terminal.press("slow one\r")
    terminal.wait_for('You said "slow one"')
    terminal.press("typed ahead\x03")
    terminal.wait_for("(cancelled; the conversation is as before)")
    upstream.wait_for_disconnect()
    terminal.press("slow two\r")
    terminal.wait_for('You said "slow two"')
    terminal.press("\x03\x03\x03\x03")  # the terminal itself drops what was being shown at each of them
    terminal.press("still here\r")
    terminal.wait_for('You said "still here"')
    terminal.wait_for("USD")
    terminal.wait_for("> ")
    terminal.press("half a line")
    terminal.wait_for("half a line")  # it is read; Ctrl-C takes from a terminal what is not
    terminal.press("\x03")
    terminal.wait_for("(forgotten; Ctrl-D or /quit ends)")
    terminal.press("cut off\r")
    terminal.wait_for("/resume goes on with it.")
    terminal.press("/effort medium\r")
    terminal.wait_for("Error: effort must be one of low, high, max")
    terminal.press("/nothing\r")
    terminal.wait_for("There is no /nothing")
    terminal.press("@no/such.png\r")
    terminal.wait_for("Error: there is no file no/such.png")


def saves_and_loads(terminal: Terminal, kept: Path) -> None:
    """The conversation to a file and back."""
    terminal.press(f"/save {kept}\r")
    terminal.wait_for("saved to")
    terminal.press("/reset\r/load nowhere.json\r")
    terminal.wait_for("Error: cannot read nowhere.json")
    terminal.press(f"/save {kept}\r")
    terminal.wait_for("the same command again writes over it")
    terminal.press(f"/load {kept}\r")
    terminal.wait_for("14 turns from")


def test_a_conversation_at_80_columns_without_colours(tmp_path: Path) -> None:
    (tmp_path / "my notes.md").write_text("buy milk\n")
    kept = tmp_path / "kept.json"
    environ = {"KIMI_API_KEY": "", "NO_COLOR": "1", "HOME": str(tmp_path)}
    with (
        ScriptedUpstream([answer], repeat_last=True) as upstream,
        Terminal(environ={**environ, "KIMI_BASE_URL": upstream.base_url}) as terminal,
    ):
        terminal.wait_for("ends.")
        terminal.press("hello\r")
        assert '| Thinking of it.\r\n| Twice.\r\n\r\nYou said "hello"\r\n' in terminal.wait_for("0.000100 USD")

        types_lines(terminal, upstream)
        terminal.press('See @"~/my notes.md"\r')
        terminal.wait_for("with ")
        terminal.wait_for("buy milk")
        terminal.wait_for("USD")
        terminal.press("/effort low\r/tier highspeed\r/cost\r")
        terminal.wait_for("note: another effort")
        terminal.wait_for("effort low")
        terminal.wait_for("tier highspeed")
        terminal.wait_for("0.000600 USD")

        interrupts(terminal, upstream)
        saves_and_loads(terminal, kept)
        terminal.press("/help\r")
        terminal.wait_for("cancels the answer")
        terminal.wait_for("> ")
        terminal.press("\x04")
        assert terminal.end() == 0
        assert not re.findall(r"\x1b\[[0-9;]*m", terminal.shown)
        own = [
            line
            for line in terminal.shown.replace("\x1b[?2004l\r", "").split("\r\n")
            if "\x1b[?2004h" not in line and "You said" not in line
        ]
        assert [line for line in own if len(line) > 80 and str(tmp_path) not in line] == []

    assert upstream.requests[-1].json["reasoning_effort"] == "low"
    assert (as_object(decode(kept.read_bytes())) or {})["effort"] == "low"
    assert len(Chat.load(kept, base_url="http://127.0.0.1:1/v1").messages) == 14


def test_with_the_emulator_thinking_is_dimmed_and_the_tokens_are_shown() -> None:
    with (
        serve(Emulator(EmulatorConfig(pace=0))) as url,
        Terminal(
            "--effort", "low", environ={"KIMI_API_KEY": "", "KIMI_BASE_URL": f"{url}/v1", "NO_COLOR": ""}
        ) as terminal,
    ):
        terminal.wait_for("effort low")
        terminal.press('How far? [[emulator {"thought_tokens": 20, "text_tokens": 30}]]\r')
        shown = terminal.wait_for("cost unknown")
        terminal.press("/quit\r")

        assert terminal.end() == 0
    assert re.search(r"(\x1b\[2m[^\x1b]+\x1b\[0m)+\r\n\r\n[^\x1b]+\r\n\x1b\[2m[0-9,]+ tokens in", shown), shown
