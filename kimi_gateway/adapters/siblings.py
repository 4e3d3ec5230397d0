"""Workers of one gateway that show each other their metrics, over sockets in a directory that is theirs alone."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_TIMEOUT_S: Final = 1.0
_LARGEST_BYTES: Final = 16 * 1024 * 1024
_log: Final = logging.getLogger("kimi_gateway.siblings")


class Siblings:
    """One worker among several. `render` gives this worker's own metrics."""

    def __init__(self, directory: Path, index: int, render: Callable[[], bytes]) -> None:
        self._directory = directory
        self._own = directory / f"metrics-{index}.sock"
        self._render = render
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Shows the metrics to siblings from now on; takes over the place of a predecessor that died."""
        with suppress(FileNotFoundError):
            self._own.unlink()
        self._server = await asyncio.start_unix_server(self._show, str(self._own))

    async def _show(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(self._render())
            async with asyncio.timeout(_TIMEOUT_S):
                await writer.drain()
        except (OSError, TimeoutError):
            return
        finally:
            writer.close()

    async def texts(self) -> list[str]:
        """The metrics of every worker that answers in time, this one's first."""
        others = [path for path in sorted(self._directory.glob("metrics-*.sock")) if path != self._own]
        asked = await asyncio.gather(*(_ask(path) for path in others))
        return [self._render().decode(), *(text for text in asked if text is not None)]

    async def close(self) -> None:
        """Shows nothing any more."""
        if self._server is not None:
            self._server.close()
        with suppress(FileNotFoundError):
            self._own.unlink()
        with suppress(OSError):  # the last one, where the supervisor was killed; else it is not empty, or not ours
            self._directory.rmdir()


async def _ask(path: Path) -> str | None:
    """The metrics of one sibling; None where it has just died or does not answer."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                return (await reader.read(_LARGEST_BYTES) + await _rest(reader)).decode()
            finally:
                writer.close()
    except (OSError, TimeoutError) as err:
        _log.warning("a worker's metrics are not in the sum: %s", type(err).__name__)
        return None


async def _rest(reader: asyncio.StreamReader) -> bytes:
    """What comes up to the end: one read may give less than there is."""
    parts = []
    while data := await reader.read(_LARGEST_BYTES):
        parts.append(data)
    return b"".join(parts)
