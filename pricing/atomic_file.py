"""A file that is there whole or not at all: written beside its place, and moved there at the end."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

_NEW_FILE: Final = 0o666


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file to write; at the end of the block it takes the place of `path`, after an error it is gone.

    A file that is there keeps its permissions, a new one gets those of any new file. Raises `OSError`.
    """
    place = path.resolve()  # so that a link stays a link
    descriptor, name = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
    temporary = Path(name)
    try:
        with open(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fchmod(file.fileno(), _mode(place))
            os.fsync(file.fileno())
        temporary.replace(place)
    finally:
        temporary.unlink(missing_ok=True)


def _mode(path: Path) -> int:
    try:
        return path.stat().st_mode & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return _NEW_FILE & ~mask
