"""What a supervisor shares with its workers, as the text of one option."""

import msgspec


class Share(msgspec.Struct, frozen=True):
    """What one worker inherits. `index` counts from 0; `again`: it follows one that died.

    `socket`, `admin` and `alive` are descriptors: the listening sockets, and a pipe that ends with the supervisor.
    `state` is the URL of the shared state, `emulator` the base_url of the built-in emulator ("" without),
    `directory` where workers find each other.
    """

    index: int = 0
    count: int = 1
    socket: int = -1
    admin: int | None = None
    alive: int = -1
    state: str = ""
    emulator: str = ""
    directory: str = ""
    again: bool = False

    def text(self) -> str:
        """The option's value."""
        return msgspec.json.encode(self).decode()


class ShareError(ValueError):
    """The text does not come from a supervisor."""


def read_share(text: str) -> Share:
    """The share of an option's value. Raises `ShareError`."""
    try:
        return msgspec.json.decode(text, type=Share)
    except msgspec.DecodeError as err:
        raise ShareError(
            f"--as-worker is for the gateway's own use ({err}); start several workers with --workers N"
        ) from err
