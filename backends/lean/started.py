"""A call under way on a kept connection, before its answer's head is in: no task, one future a wait."""

import asyncio
from collections.abc import Callable

from backends.lean.line import Line
from backends.lean.reply import Reply
from backends.ports import Reply as AnyReply
from backends.ports import UpstreamFault


class Started:
    """See `backends.ports.Started`. `unusual` gives the reply of an error or of a compressed answer."""

    __slots__ = ("_line", "_loop", "_unusual")

    def __init__(self, line: Line, loop: asyncio.AbstractEventLoop, unusual: Callable[[Line], AnyReply]) -> None:
        self._line: Line | None = line
        self._loop = loop
        self._unusual = unusual

    async def reply(self, wait_s: float) -> AnyReply | None:
        """The answer once its head is in, None after `wait_s` seconds. Raises `UpstreamFault`."""
        line = self._line
        assert line is not None, "asked for after its end"
        if _is_silent(line):
            if wait_s <= 0:
                await asyncio.sleep(0)  # a caller who asks again and again must not hold up the loop
            else:
                await line.wait(self._loop.time() + wait_s)
            if _is_silent(line):
                return None
        self._line = None
        if not line.status:
            fault = line.broken
            assert fault is not None, "an answer, or why there is none"
            line.abort()
            raise UpstreamFault(fault)
        if 200 <= line.status < 300 and "content-encoding" not in line.fields:
            return Reply(line, self._loop)
        return self._unusual(line)

    def close(self) -> None:
        """Ends the call where nobody has its reply."""
        line, self._line = self._line, None
        if line is not None:
            line.abort()


def _is_silent(line: Line) -> bool:
    return not line.status and line.broken is None
