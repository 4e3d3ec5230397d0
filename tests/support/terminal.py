"""`kimi-chat` on a pseudo-terminal of 80 columns, as somebody sits before it."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

_COLUMNS: Final = 80
_ROWS: Final = 24
_WAIT_S: Final = 20.0
_START: Final = (
    "import os, runpy, sys\n"
    "fd = os.open(sys.argv[1], os.O_RDWR)\n"  # the first terminal that a session's leader opens is its own
    "for number in (0, 1, 2):\n    os.dup2(fd, number)\n"
    "sys.argv = ['kimi-chat', *sys.argv[2:]]\n"
    "runpy.run_module('kimi_sdk', run_name='__main__')\n"
)


class Terminal:
    """The program with its keys and its screen. `shown` is all that it has written."""

    def __init__(self, *arguments: str, environ: Mapping[str, str]) -> None:
        self._keys, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", _ROWS, _COLUMNS, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, os.ttyname(slave), *arguments],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "TERM": "xterm-256color", "PYTHONWARNINGS": "", **environ},
            start_new_session=True,
        )
        self._slave = slave  # held open: else the first read might find nobody there
        self.shown = ""
        self._seen = 0

    def press(self, keys: str) -> None:
        """Presses keys; `\\r` is Enter, `\\x03` Ctrl-C, `\\x04` Ctrl-D."""
        os.write(self._keys, keys.encode())

    def wait_for(self, text: str) -> str:
        """What was written since the last wait, up to and with this text. Raises `AssertionError`."""
        deadline = time.monotonic() + _WAIT_S
        while text not in self.shown[self._seen :]:
            if time.monotonic() > deadline or not self._read(0.1):
                raise AssertionError(f"{text!r} did not come; since the last wait: {self.shown[self._seen :]!r}")
        end = self.shown.index(text, self._seen) + len(text)
        said, self._seen = self.shown[self._seen : end], end
        return said

    def end(self) -> int:
        """The exit code, once the program has ended."""
        code = self._process.wait(_WAIT_S)
        while select.select([self._keys], [], [], 0)[0] and self._read(0):
            pass
        return code

    def _read(self, wait_s: float) -> bool:
        """Reads what is there; false where the program has ended and nothing is left."""
        if select.select([self._keys], [], [], wait_s)[0]:
            self.shown += os.read(self._keys, 65536).decode(errors="replace")
            return True
        return self._process.poll() is None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(_WAIT_S)
        os.close(self._slave)
        os.close(self._keys)
