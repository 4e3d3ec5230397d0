"""The terminal chat: a conversation line by line, or one answer for a script."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from shutil import get_terminal_size
from typing import Any, Final, TextIO, cast

from kimi_sdk.broken import StreamCut
from kimi_sdk.client import Chat
from kimi_sdk.conversation import DEFAULT_MODEL
from kimi_sdk.errors import InvalidInput, KimiError
from kimi_sdk.events import Done, Event, TextDelta, ThinkingDelta
from kimi_sdk.meter import Meter
from kimi_sdk.notices import KimiWarning
from kimi_sdk.parts import Part, Question
from kimi_sdk.place import Tier
from kimi_sdk.reply import Reply
from kimi_sdk.request import Effort
from kimi_sdk.terminal_args import Options
from kimi_sdk.terminal_commands import Session, run_command
from kimi_sdk.terminal_files import question_of
from kimi_sdk.terminal_interrupt import Interrupts
from kimi_sdk.terminal_lines import Keyboard, Message
from kimi_sdk.terminal_view import Screen, usage_line

ANSWERED: Final = 0
FAILED: Final = 1
WRONG_USAGE: Final = 2
INTERRUPTED: Final = 130


def run(options: Options, environ: Mapping[str, str]) -> int:
    """The whole program after its arguments were read; gives the exit code."""
    meter = Meter(options.max_cost)
    screen = _screen(options, environ)
    is_once = bool(options.prompt) or not sys.stdin.isatty()
    with ExitStack() as stack:
        stack.enter_context(_notes(_complain if is_once else screen.aside))
        load = options.load
        chat = _new_chat(options, meter) if load is None else _continued_chat(options, meter, load)
        stack.enter_context(closing(chat))
        if is_once:
            return _once(chat, _given(options.prompt), screen)
        return Dialogue(chat, options, meter, screen, Keyboard(sys.stdin)).run()


def _new_chat(options: Options, meter: Meter) -> Chat:
    return Chat(
        system=options.system,
        model=options.model or DEFAULT_MODEL,
        effort=cast(Effort | None, options.effort),  # argparse has let no other through
        tier=cast(Tier | None, options.tier),
        base_url=options.base_url,
        max_completion_tokens=options.max_completion_tokens,
        meter=meter,
    )


def _continued_chat(options: Options, meter: Meter, path: str) -> Chat:
    """The chat of --load. What the file has settled already cannot be an option as well."""
    settled = {
        "--system": options.system,
        "--model": options.model,
        "--max-completion-tokens": options.max_completion_tokens,
    }
    given = [name for name, value in settled.items() if value is not None]
    if given:
        raise InvalidInput(f"{' and '.join(given)} cannot be given with --load: the file says it already")
    chat = _loaded_chat(options, meter, path)
    if options.effort is not None:
        chat.effort = cast(Effort, options.effort)
    if options.tier is not None:
        chat.tier = cast(Tier, options.tier)
    return chat


def _loaded_chat(options: Options, meter: Meter, path: str) -> Chat:
    try:
        return Chat.load(path, base_url=options.base_url, meter=meter)
    except OSError as err:
        raise InvalidInput(f"cannot read {path}: {err.strerror}") from err


def _screen(options: Options, environ: Mapping[str, str]) -> Screen:
    has_colour = sys.stdout.isatty() and not environ.get("NO_COLOR") and environ.get("TERM") != "dumb"
    shows_thinking = options.shows_thinking and sys.stdout.isatty()
    return Screen(
        _to(sys.stdout), has_colour=has_colour, shows_thinking=shows_thinking, width=get_terminal_size().columns
    )


def _to(stream: TextIO) -> Callable[[str], None]:
    def write(text: str) -> None:
        stream.write(text)
        stream.flush()

    return write


# --- one answer -----------------------------------------------------------------------------------------------


def _given(prompt: str) -> Question:
    """The prompt of the command line, with the files it names, and behind it what comes on standard input."""
    if sys.stdin.isatty():
        return question_of(prompt)
    try:
        piped = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as err:
        raise InvalidInput(f"standard input is no text in UTF-8: {err.reason} at byte {err.start}") from err
    if not prompt:
        return piped
    question = question_of(prompt)
    parts: list[str | Part] = [question] if isinstance(question, str | Part) else [*question]
    return [*parts, piped] if piped.strip() else question


def _once(chat: Chat, question: Question, screen: Screen) -> int:
    """Asks once. On a terminal the answer is shown as in a conversation; else its text alone is written."""
    to_terminal = sys.stdout.isatty()
    write = _to(sys.stdout)
    last = ""
    with closing(chat.stream(question)) as events:
        try:
            for event in events:
                if to_terminal:
                    show(screen, event)
                elif isinstance(event, TextDelta) and event.text:
                    write(event.text)
                    last = event.text
        except KimiError as err:
            screen.end() if to_terminal else write("\n" if last and not last.endswith("\n") else "")
            _complain(_broken_off(err) if isinstance(err, StreamCut) else str(err))
            return WRONG_USAGE if isinstance(err, InvalidInput) else FAILED
    if not to_terminal and not last.endswith("\n"):
        write("\n")
    return ANSWERED


def _broken_off(err: StreamCut) -> str:
    """What ended an answer, without the advice for programs."""
    return f"the answer broke off: {err.__cause__ or err}"


def _complain(text: str) -> None:
    _to(sys.stderr)(f"kimi-chat: {text}\n")


# --- a conversation -------------------------------------------------------------------------------------------


class Dialogue:
    """Reads messages and shows answers until the end of the input or /quit."""

    def __init__(self, chat: Chat, options: Options, meter: Meter, screen: Screen, keyboard: Keyboard) -> None:
        def load(path: str) -> Chat:
            return _loaded_chat(options, meter, path)

        self._session = Session(chat, screen, load, self._resume)
        self._screen = screen
        self._keyboard = keyboard
        self._interrupts = Interrupts()

    def run(self) -> int:
        """Gives the exit code, which is that of an end in order."""
        chat = self._session.chat
        effort = f", effort {chat.effort}" if chat.effort else ""
        self._screen.say(f"{chat.model} at {chat.base_url}{effort}. /help shows the commands, Ctrl-D ends.")
        with self._interrupts.heeded():
            while not self._session.is_over:
                message = self._next()
                if message is None:
                    break
                if message.text.strip():
                    self._guarded(message)
        if self._session.chat is not chat:
            self._session.chat.close()
        return ANSWERED

    def _next(self) -> Message | None:
        """The next message; None at the end of the input."""
        while True:
            try:
                with self._interrupts.open():
                    return self._keyboard.read_message()
            except EOFError:
                self._screen.say("")
                return None
            except KeyboardInterrupt:
                self._screen.say("\n(forgotten; Ctrl-D or /quit ends)")
            except UnicodeDecodeError as err:
                self._screen.say(f"That is no text in UTF-8: {err.reason}.")

    def _take(self, message: Message) -> None:
        """A command, or a question."""
        if message.is_typed and run_command(self._session, message.text):
            return
        question = question_of(message.text) if message.is_typed else message.text
        if not isinstance(question, str | Part):
            files = [part.shown for part in question if isinstance(part, Part)]
            self._screen.aside(f"with {', '.join(files)}")
        with closing(self._session.chat.stream(question)) as events:
            for event in events:
                show(self._screen, event)

    def _resume(self) -> None:
        reply = self._session.chat.resume()
        self._screen.text(reply.text)
        _show_end(self._screen, reply)

    def _guarded(self, message: Message) -> None:
        """Does what may fail or be cancelled; the conversation goes on."""
        try:
            with self._keyboard.quiet(), self._interrupts.open():
                self._take(message)
        except KeyboardInterrupt:
            self._screen.say("(cancelled; the conversation is as before)")
        except StreamCut as err:
            self._screen.say(f"T{_broken_off(err)[1:]}\n/resume goes on with it.")
        except (KimiError, OSError) as err:
            self._screen.say(f"Error: {err}")


def show(screen: Screen, event: Event) -> None:
    """Shows one event of an answer."""
    if isinstance(event, ThinkingDelta):
        screen.thinking(event.text)
    elif isinstance(event, TextDelta):
        screen.text(event.text)
    elif isinstance(event, Done):
        _show_end(screen, event.reply)


def _show_end(screen: Screen, reply: Reply[Any]) -> None:
    cut = "cut off by the output limit · " if reply.finish_reason == "length" else ""
    screen.aside(f"{cut}{usage_line(reply.usage, reply.cost, reply.cost_source)}")


@contextmanager
def _notes(tell: Callable[[str], None]) -> Iterator[None]:
    """Warnings of this package are told as words to the user, not as lines of a program."""
    with warnings.catch_warnings():
        warnings.simplefilter("always", KimiWarning)
        plain = warnings.showwarning

        def told(message: Warning | str, category: type[Warning], *rest: Any) -> None:
            if issubclass(category, KimiWarning):
                tell(f"note: {message}")
            else:
                plain(message, category, *rest)

        warnings.showwarning = cast(Any, told)
        yield
