"""A tool call that leaked into the content as the model's own text, cut off while the text streams.

Only where all of this is so: the dialect states with which text such a call begins, the request forbade calls or
offered no tools, and exactly that text comes. There the call is nothing that anybody asked for, and K3's encoding
puts nothing of the answer behind it: the calls are the last channel of a message. Every other mark is left alone
and only counted (`backends.sentinel`), because it may be what the user asked to see, or a call that a client can
still make out.
"""


class CallCutter:
    """The content of one choice in, the same without a leaked call out; any cut of the text gives the same.

    What may be the beginning of `opening` is held back until more has come.
    """

    __slots__ = ("_held", "_is_over", "_opening", "has_cut")

    def __init__(self, opening: str) -> None:
        self._opening = opening
        self._held = ""
        self._is_over = False
        self.has_cut = False

    def feed(self, text: str) -> str:
        """What is certain to be answer."""
        if self.has_cut:
            return ""
        text = self._held + text
        self._held = ""
        if self._is_over:
            return text
        kept, opening, _ = text.partition(self._opening)
        if opening:
            self.has_cut = True
            return kept
        start = self._begun_at(text)
        self._held = text[start:]
        return text[:start]

    def finish(self) -> str:
        """What was still held back: the beginning of a call alone is no call. Nothing is held back any more."""
        held, self._held, self._is_over = self._held, "", True
        return held

    def _begun_at(self, text: str) -> int:
        """Where the text's end may be the beginning of the opening; the text's length where it is not."""
        first = self._opening[0]
        start = text.find(first, max(0, len(text) - len(self._opening) + 1))
        while start >= 0:
            if self._opening.startswith(text[start:]):
                return start
            start = text.find(first, start + 1)
        return len(text)
