"""What a command decided about one gateway process, and the sockets that it serves on."""

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kimi_gateway.server import bind
from kimi_gateway.settings import Settings
from kimi_gateway.worker import Share


@dataclass(frozen=True, slots=True)
class Launch:
    """What the command decided. `reload` reads the settings again; `say` prints a text on standard output."""

    settings: Settings
    reload: Callable[[], Settings]
    say: Callable[[str], None]
    emulator_if_empty: bool = False
    log_format: str = "auto"
    share: Share | None = None  # this is one of several workers

    @property
    def speaks(self) -> bool:
        """It says what it serves: a single process, and the first of several when it starts."""
        return self.share is None or (self.share.index == 0 and not self.share.again)


def bound_sockets(launch: Launch) -> tuple[socket.socket, socket.socket | None]:
    """The bound sockets of the gateway and of its administration; a worker's come from its supervisor."""
    settings, share = launch.settings, launch.share
    if share is not None:
        return socket.socket(fileno=share.socket), (
            None if share.admin is None else socket.socket(fileno=share.admin)
        )
    sock = bind(settings.server.host, settings.server.port)
    try:
        return sock, None if settings.admin.listen is None else bind(*settings.admin.listen)
    except Exception:
        sock.close()
        raise


NO_TARGET: Final = (
    "no target is configured: set MOONSHOT_API_KEY, OPENROUTER_API_KEY, VLLM_BASE_URL or SGLANG_BASE_URL, or "
    "write [[targets]] into kimi-gateway.toml (see `kimi-gateway serve --help`), or try it out with "
    "--emulator-if-empty"
)
