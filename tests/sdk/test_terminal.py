"""The parts of the terminal chat: what is typed, which files it names, what is shown. Pure."""

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_sdk.errors import InvalidInput
from kimi_sdk.parts import Part
from kimi_sdk.terminal_args import read_options
from kimi_sdk.terminal_commands import HELP
from kimi_sdk.terminal_files import question_of
from kimi_sdk.terminal_lines import FURTHER, PROMPT, Message, read_message
from kimi_sdk.terminal_view import Screen, dollars, tokens, visible
from pricing.usage import TokenUsage

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 9
MP4 = b"\0\0\0\x20ftypisom\0\0\x02\0"

# --- lines ----------------------------------------------------------------------------------------------------


class Typist:
    """Types lines one by one; those of `pasted` come at once with the one before."""

    def __init__(self, *lines: str, pasted: int = 0) -> None:
        self.lines = list(lines)
        self.pasted = pasted
        self.prompts: list[str] = []

    def read_line(self, prompt: str) -> str:
        self.prompts.append(prompt)
        if not self.lines:
            raise EOFError
        return self.lines.pop(0)

    def is_more_there(self) -> bool:
        self.pasted -= 1
        return self.pasted >= 0

    def message(self) -> Message:
        return read_message(self.read_line, self.is_more_there)


@pytest.mark.parametrize(
    ("lines", "text", "is_typed"),
    [
        (["hello"], "hello", True),
        ([""], "", True),
        (["one\\", "two\\", "three"], "one\ntwo\nthree", True),
        (["ends with \\\\"], "ends with \\\\", True),
        (['"""', "def f():", "    pass", '"""'], "def f():\n    pass", False),
        (['"""one line"""'], "one line", False),
        (['"""first', '"quoted"', 'last"""'], 'first\n"quoted"\nlast', False),
        (['"""', "/quit", "a \\", '"""'], "/quit\na \\", False),
        (["pasted\nin one piece"], "pasted\nin one piece", False),
        (["/quit\npasted"], "/quit\npasted", False),
    ],
)
def test_lines_become_messages(lines: list[str], text: str, is_typed: bool) -> None:
    typist = Typist(*lines, "the next one")

    assert typist.message() == Message(text, is_typed)
    assert typist.lines == ["the next one"]
    assert typist.prompts == [PROMPT] + [FURTHER] * (len(lines) - 1)


def test_lines_that_come_at_once_are_one_message_and_not_typed() -> None:
    assert Typist("a", "/quit", "c", pasted=2).message() == Message("a\n/quit\nc", is_typed=False)
    assert Typist("a", "", "", "b", pasted=3).message() == Message("a\n\n\nb", is_typed=False)
    assert Typist("a\\", "b", "c", pasted=1).message() == Message("a\nb\nc", is_typed=False)


def test_a_command_is_one_line_whatever_comes_after_it() -> None:
    typist = Typist("/effort low", "hello", "world", pasted=1)

    assert (typist.message().text, typist.message().text) == ("/effort low", "hello\nworld")
    assert Typist("/usr/bin is what?", "more", pasted=1).message().text == "/usr/bin is what?\nmore"


def test_the_end_of_the_input_within_a_message_forgets_it() -> None:
    for lines in ((), ("a\\",), ('"""', "a")):
        with pytest.raises(EOFError):
            Typist(*lines).message()


@settings(max_examples=60)
@given(st.text(alphabet='ab\\"/ \n', max_size=30))
def test_what_stands_in_a_fence_is_kept_as_it_is(text: str) -> None:
    inside = text.strip("\n")
    if '"""' in inside or inside.rstrip().endswith('"'):
        inside += " ."
    inside = inside.replace('"""', "'''")
    lines = ['"""', *inside.split("\n"), '"""']

    assert Typist(*lines).message().text == inside.strip("\n")


# --- files ----------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "photo.png").write_bytes(PNG)
    (tmp_path / "my clip.mp4").write_bytes(MP4)
    (tmp_path / "notes.md").write_text("buy milk\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def shape(text: str) -> list[str]:
    """The question with its parts by kind."""
    question = question_of(text)
    assert not isinstance(question, Part)
    if isinstance(question, str):
        return [question]
    return [part if isinstance(part, str) else part.kind for part in question]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("What is on @photo.png?", ["photo.png:", "image_url"]),
        ("@photo.png", ["photo.png:", "image_url"]),
        ('See @"my clip.mp4".', ["my clip.mp4:", "video_url"]),
        ("Compare (@photo.png) and @notes.md, twice @notes.md", None),
        ("Compare @photo.png, @notes.md!", ["photo.png:", "image_url", "text"]),
        ("@./notes.md @~/notes.md", ["text", "text"]),
        ("Ask @anna about it, or mail a@b.example or @ home", []),
        ("no file here", []),
    ],
)
def test_files_named_in_a_message_go_with_it(folder: Path, text: str, expected: list[str] | None) -> None:
    if expected is None:  # only what white space stands before is named
        expected = ["text"]
    assert shape(text) == [text, *expected]


@pytest.mark.parametrize("text", ["@nowhere.png", "@no/such", '@"no such"', "see @photo.jpg, please"])
def test_a_path_that_leads_nowhere_is_said(folder: Path, text: str) -> None:
    with pytest.raises(InvalidInput, match="there is no file"):
        question_of(text)


@pytest.mark.parametrize(
    ("text", "sent"),
    [("\\@bob.example is back", "@bob.example is back"), ("ask \\@./x and a\\@b", "ask @./x and a\\@b")],
)
def test_an_at_sign_behind_a_backslash_names_no_file(folder: Path, text: str, sent: str) -> None:
    with pytest.raises(InvalidInput, match=r"\\@ is an @ that names no file"):
        question_of("@bob.example is back")

    assert question_of(text) == sent


def test_a_file_that_cannot_be_sent_is_said(folder: Path) -> None:
    (folder / "a.pdf").write_bytes(b"%PDF-1.7\0\xff")
    with pytest.raises(InvalidInput, match="is no text"):
        question_of("@a.pdf")


# --- the screen -----------------------------------------------------------------------------------------------


def drawn(act: Callable[[Screen], None], *, has_colour: bool = False, shows_thinking: bool = True) -> str:
    written: list[str] = []
    act(Screen(written.append, has_colour=has_colour, shows_thinking=shows_thinking))
    return "".join(written)


def talk(screen: Screen) -> None:
    for piece in ("Let ", "me\nthink", ".\n"):
        screen.thinking(piece)
    for piece in ("The ", "answer", ""):
        screen.text(piece)
    screen.aside("10 tokens in")


def test_thinking_is_dimmed_and_text_is_plain() -> None:
    assert drawn(talk, has_colour=True) == (
        "\x1b[2mLet \x1b[0m\x1b[2mme\nthink\x1b[0m\x1b[2m.\n\x1b[0m\nThe answer\n\x1b[2m10 tokens in\x1b[0m\n"
    )


def test_without_colours_thinking_stands_behind_a_bar() -> None:
    assert drawn(talk) == "| Let me\n| think.\n\nThe answer\n10 tokens in\n"
    assert drawn(talk, shows_thinking=False) == "The answer\n10 tokens in\n"


@settings(max_examples=60)
@given(st.lists(st.text(alphabet="ab\n", min_size=1, max_size=5), min_size=1, max_size=6))
def test_every_line_of_thinking_has_its_bar_however_it_is_cut(pieces: list[str]) -> None:
    def think(screen: Screen) -> None:
        for piece in pieces:
            screen.thinking(piece)
        screen.end()

    whole = "".join(pieces)
    lines = whole.removesuffix("\n").split("\n") if whole.strip("\n") or len(whole) > 1 else [""]

    assert drawn(think) == "".join(f"| {line}\n" for line in lines)


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert visible("a\x1b[2Jb\x07\r\nc\td\x9b\x7f") == "a␛[2Jb␇\nc\td\ufffd␡"
    shown = drawn(lambda screen: screen.text("\x1b]0;title\x07\x1b[31mred"), has_colour=True)
    assert "\x1b" not in shown


def test_words_of_the_program_fit_into_80_columns() -> None:
    long = "There is no /nothing; " * 10
    for act in (
        lambda screen: screen.say(HELP),
        lambda screen: screen.say(long),
        lambda screen: screen.aside(long),
    ):
        assert max(len(line) for line in drawn(act).splitlines()) <= 80


def test_the_help_of_the_command_fits_into_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_options(["--help"])

    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert max(len(line) for line in shown.splitlines()) <= 80
    assert "exit codes: 0 answered" in shown


def test_wrong_arguments_end_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--effort", "medium"], ["--max-completion-tokens", "many"], ["--unknown"]):
        with pytest.raises(SystemExit) as ended:
            read_options(arguments)
        assert ended.value.code == 2
    assert "invalid choice: 'medium'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("cost", "source", "shown"),
    [
        (None, "", "cost unknown"),
        (Decimal(0), "gateway", "0 USD"),
        (Decimal("0.0046272"), "gateway", "0.004627 USD"),
        (Decimal("12.5"), "cards", "12.500000 USD by the rate cards"),
        (Decimal("0.01"), "estimate", "0.010000 USD estimated"),
    ],
)
def test_money_is_shown_to_a_millionth_and_marked(cost: Decimal | None, source: str, shown: str) -> None:
    assert dollars(cost, source) == shown


def test_tokens_are_shown_with_what_was_cached() -> None:
    assert tokens(TokenUsage(input=1000, cache_read=4096, output=200)) == "5,096 tokens in (4,096 cached), 200 out"
    assert tokens(TokenUsage(input=3, output=2)) == "3 tokens in, 2 out"
    assert tokens(None) == "tokens unknown"
