"""One choice of an answer, read and put into Moonshot's spelling: its deltas one after the other, or its message.

Both are read by the same rules: the thought is spelled `reasoning_content`, a thought or a call that an engine
left in the content is taken out of it where that is asked for, and signs of a broken engine are noted on the way.
"""

from dataclasses import dataclass

from backends.dialect import Dialect
from backends.json import Json, JsonObject, as_list, as_object
from backends.markers import CallCutter
from backends.plain import Piece
from backends.reasoning import View, respell_thought
from backends.sentinel import Sign, Watch, end_signs
from backends.think_tags import ThinkSplitter
from backends.tool_calls import CallIndexer


@dataclass(frozen=True, slots=True)
class Rules:
    """How the answers to one request are read, beside what is always done.

    `repairs_stop`: `stop` after a call means `tool_calls`. `splits_thoughts`: a leading `<think>` block of the
    content is the thought. `call_opening`: content from there on is a leaked call; "" cuts nothing.
    """

    repairs_stop: bool = False
    splits_thoughts: bool = False
    call_opening: str = ""

    @property
    def may_hold_text(self) -> bool:
        """Content may be held back for a moment."""
        return self.splits_thoughts or bool(self.call_opening)


def rules(dialect: Dialect, *, named_tool: bool, calls_wanted: bool, split_think_tags: bool) -> Rules:
    """The rules of the dialect for a request: whether its tool choice names one function, whether it wants calls
    (it offers tools and does not forbid them), and the target's setting."""
    return Rules(
        repairs_stop=named_tool and dialect.marks_named_call_stop,
        splits_thoughts=split_think_tags,
        call_opening="" if calls_wanted else dialect.leaked_call_opening,
    )


class Tally:
    """What the choices of one chunk come to. Made for every chunk, so it has no constructor to run."""

    commits: bool = False
    finished: tuple[int, ...] = ()
    broken: str = ""
    text_bytes: int = 0
    thought_bytes: int = 0

    def text(self, value: Json) -> None:
        """Counts text for the client; anything but a string (a list of parts) counts as said, not by length."""
        if isinstance(value, str):
            self.text_bytes += _size_bytes(value)
        if value:
            self.commits = True


class Choice:
    """What is known of one choice so far. `finish_reason` is the upstream's own, "" until it came."""

    __slots__ = (
        "_content_watch",
        "_cutter",
        "_has_calls",
        "_has_text",
        "_holds",
        "_indexer",
        "_rules",
        "_splitter",
        "_thought_watch",
        "_view",
        "finish_reason",
    )

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._holds = rules.may_hold_text
        self._splitter = ThinkSplitter() if rules.splits_thoughts else None
        self._cutter = CallCutter(rules.call_opening) if rules.call_opening else None
        self._content_watch = Watch()
        self._thought_watch = Watch()
        self._indexer: CallIndexer | None = None
        self._view = View.NONE
        self._has_text = False
        self._has_calls = False
        self.finish_reason = ""

    @property
    def is_finished(self) -> bool:
        """Its finish reason has come."""
        return self.finish_reason != ""

    def read_delta(self, delta: JsonObject, tally: Tally, *, is_last: bool) -> None:
        """Normalises the delta in place and counts what is in it. `is_last`: it comes with the finish reason, and
        nothing is held back beyond it."""
        if "reasoning" in delta or "reasoning_content" in delta or "reasoning_details" in delta:
            self._view = respell_thought(delta, self._view)
            thought = delta.get("reasoning_content")
            if thought and isinstance(thought, str):
                self._take_thought(thought, tally)
        if content := delta.get("content"):
            watch = self._content_watch
            if isinstance(content, str) and ("<" in content or not watch.is_idle):
                watch.see(content)
            if not self._holds:
                self._has_text = True
                tally.text(content)
        if self._holds:
            self._filter(delta, tally, is_last=is_last)
        if refusal := delta.get("refusal"):
            self._has_text = True
            tally.text(refusal)
        if calls := delta.get("tool_calls"):
            self._place_calls(as_list(calls), tally)

    def read_plain(self, content: Piece, thought: Piece) -> None:
        """The same of a delta that is known to carry nothing but these, where no text is held back."""
        if thought and isinstance(thought, str):
            self._view = View.PLAIN
            watch = self._thought_watch
            if "<" in thought or not watch.is_idle:
                watch.see(thought)
        if content and isinstance(content, str):
            self._has_text = True
            watch = self._content_watch
            if "<" in content or not watch.is_idle:
                watch.see(content)

    def read_message(self, message: JsonObject) -> None:
        """Normalises a whole message in place."""
        tally = Tally()
        respell_thought(message)
        thought, content = message.get("reasoning_content"), message.get("content")
        if thought and isinstance(thought, str):
            self._take_thought(thought, tally)
        if isinstance(content, str):
            self._content_watch.see(content)
        if self._holds:
            self._filter(message, tally, is_last=True)
        self._has_text = bool(message.get("content") or message.get("refusal"))
        for call in as_list(message.get("tool_calls")):
            if isinstance(call, dict):
                self._has_calls = True
                call.pop("index", None)  # SGLang writes it; only pieces of a stream have one

    def finish(self, reason: str) -> str:
        """The finish reason as it is told on; of several the first is the upstream's."""
        self.finish_reason = self.finish_reason or reason
        if reason == "stop" and self._has_calls and self._rules.repairs_stop:
            return "tool_calls"
        return reason

    def held(self, tally: Tally) -> JsonObject:
        """A delta with what is still held back; empty where nothing is. Afterwards nothing is held back."""
        delta: JsonObject = {}
        if self._holds:
            self._filter(delta, tally, is_last=True)
        return delta

    def signs(self) -> frozenset[Sign]:
        """What it has shown; only the end of a finished choice is judged."""
        found = set(self._content_watch.found)
        if Sign.TOOL_MARKUP in self._thought_watch.found:
            found.add(Sign.TOOL_MARKUP_IN_THOUGHT)
        if self._cutter is not None and self._cutter.has_cut:
            found.add(Sign.MARKUP_STRIPPED)
        if self.is_finished:
            found |= end_signs(self.finish_reason, has_text=self._has_text, has_calls=self._has_calls)
        return frozenset(found)

    def _take_thought(self, thought: str, tally: Tally) -> None:
        """Counts a thought that came under its own name."""
        tally.thought_bytes += _size_bytes(thought)
        tally.commits = True
        watch = self._thought_watch
        if "<" in thought or not watch.is_idle:
            watch.see(thought)
        if self._splitter is not None:
            self._splitter.stand_down()

    def _filter(self, part: JsonObject, tally: Tally, *, is_last: bool) -> None:
        """Takes out of the content what is none, and holds back what may be the beginning of that: of the last
        part nothing. Counts what is left."""
        content = part.get("content")
        if content and isinstance(content, str):
            part["content"] = ""
            self._add(part, tally, self._filtered(content))
        elif content:
            self._has_text = True
            tally.text(content)
        if is_last:
            self._add(part, tally, self._released())

    def _filtered(self, content: str) -> tuple[str | None, str]:
        """The thought in it (None: none was opened) and the answer, as far as they are certain."""
        thought: str | None = None
        if self._splitter is not None:
            thought, content = self._splitter.feed(content)
        if self._cutter is not None:
            content = self._cutter.feed(content)
        return thought, content

    def _released(self) -> tuple[str | None, str]:
        """The same of what is still held back."""
        thought: str | None = None
        text = ""
        if self._splitter is not None:
            thought, text = self._splitter.finish()
        if self._cutter is not None:
            text = self._cutter.feed(text) + self._cutter.finish()
        return thought, text

    def _add(self, part: JsonObject, tally: Tally, found: tuple[str | None, str]) -> None:
        """Adds thought and text to what the part says; a part that says nothing gets no empty text."""
        thought, text = found
        if thought is not None:
            said = part.get("reasoning_content")
            part["reasoning_content"] = (said if isinstance(said, str) else "") + thought
            tally.thought_bytes += _size_bytes(thought)
            tally.commits = tally.commits or thought != ""
        if text:
            said = part.get("content")
            part["content"] = (said if isinstance(said, str) else "") + text
            self._has_text = True
            tally.text(text)

    def _place_calls(self, calls: list[Json], tally: Tally) -> None:
        if self._indexer is None:
            self._indexer = CallIndexer()
        for call in calls:
            if isinstance(call, dict):
                self._has_calls = True
                self._indexer.place(call)
                function = as_object(call.get("function")) or {}
                tally.text(function.get("name"))
                tally.text(function.get("arguments"))
                tally.commits = True


def _size_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())
