"""The commands of the terminal chat: lines that begin with a slash."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from kimi_sdk.client import Chat
from kimi_sdk.errors import InvalidInput
from kimi_sdk.place import Tier
from kimi_sdk.request import Effort
from kimi_sdk.terminal_lines import COMMAND
from kimi_sdk.terminal_view import Screen, dollars, tokens

HELP: Final = """\
Commands:
  /effort [low|high|max|unset]   how much it thinks
  /tier [standard|highspeed]     how fast it answers, and at what price
  /cost                          what it has used and cost so far
  /save FILE, /load FILE         keep the conversation, go on with one
  /resume                        go on with an answer that broke off
  /reset                         forget the conversation
  /help, /quit                   this; the end (also Ctrl-D)
Messages:
  a \\ at the end of a line       goes on with the next one
  \"\"\"                            up to the next \"\"\" all lines are one message
  @photo.png, @"my notes.md"     sends the file too (where typed, not pasted)
  \\@name                        is an @ that names no file
  Ctrl-C                         cancels the answer, or what you have typed"""


@dataclass(slots=True)
class Session:
    """What commands work on. `load` makes the chat that a file holds; `say` are words of this program."""

    chat: Chat
    screen: Screen
    load: Callable[[str], Chat]
    resume: Callable[[], None]
    is_over: bool = False
    own_file: Path | None = None
    """Saved to or loaded from: it may be written over."""
    asked_over: Path | None = None
    """Saving there was refused once; the same again is meant."""

    def say(self, text: str) -> None:
        """Shows a message of the program."""
        self.screen.say(text)


def run_command(session: Session, line: str) -> bool:
    """Runs a line that is a command; false where it is none. Raises `InvalidInput`, `OSError`."""
    found = COMMAND.fullmatch(line)
    if found is None:
        return False
    command = _COMMANDS.get(found["name"])
    if command is None:
        session.say(
            f"There is no /{found['name']}. /help shows what there is; a space before it makes it a message."
        )
        return True
    command(session, found["rest"] or "")
    return True


def _help(session: Session, rest: str) -> None:
    session.say(HELP)


def _effort(session: Session, rest: str) -> None:
    if rest:
        session.chat.effort = None if rest == "unset" else cast(Effort, rest)  # checked there
    session.say(f"effort {session.chat.effort or 'unset (the model then thinks at max)'}")


def _tier(session: Session, rest: str) -> None:
    if rest:
        session.chat.tier = cast(Tier, rest)  # checked there
    session.say(f"tier {session.chat.tier or 'standard'}")


def _cost(session: Session, rest: str) -> None:
    chat = session.chat
    session.say(f"{tokens(chat.usage)}\n{dollars(chat.cost)}")
    if chat.estimated_cost:
        session.say(f"and about {dollars(chat.estimated_cost)} for answers without a bill")
    if chat.unpriced:
        session.say(f"{chat.unpriced} of the answers have no known price")
    if chat.meter is not None and chat.meter.max_cost is not None:
        session.say(f"of at most {dollars(chat.meter.max_cost)}")


def _save(session: Session, rest: str) -> None:
    path = _path(session, rest, "save")
    if path.exists() and path != session.own_file and path != session.asked_over:
        session.asked_over = path
        session.say(f"{path} is there already; the same command again writes over it.")
        return
    session.chat.save(path)
    session.own_file = path
    session.say(f"saved to {path}")


def _load(session: Session, rest: str) -> None:
    path = _path(session, rest, "load")
    loaded = session.load(str(path))
    session.chat.close()
    session.chat = loaded
    session.own_file = path
    session.say(f"{len(loaded.messages)} turns from {path}, {dollars(loaded.cost)} so far")


def _path(session: Session, rest: str, command: str) -> Path:
    if rest:
        return Path(rest.strip('"')).expanduser()
    if session.own_file is not None and command == "save":
        return session.own_file
    raise InvalidInput(f"name a file: /{command} FILE")


def _reset(session: Session, rest: str) -> None:
    session.chat.reset()
    session.own_file = None
    session.say("The conversation is forgotten; what it has cost is not.")


def _resume(session: Session, rest: str) -> None:
    session.resume()


def _quit(session: Session, rest: str) -> None:
    session.is_over = True


_COMMANDS: Final[dict[str, Callable[[Session, str], None]]] = {
    "help": _help,
    "effort": _effort,
    "tier": _tier,
    "cost": _cost,
    "save": _save,
    "load": _load,
    "reset": _reset,
    "resume": _resume,
    "quit": _quit,
    "exit": _quit,
}
