"""What a running gateway can take over from a changed configuration, and what has to wait for the next start."""

from dataclasses import replace
from typing import Final

from kimi_gateway.core.openmode import is_loopback
from kimi_gateway.settings.mistakes import SettingsError
from kimi_gateway.settings.model import Settings

_BOUND_SERVER: Final = ("host", "port", "workers", "max_connections")
"""Tied to the socket and the descriptors of the process."""


def carry_over(old: Settings, new: Settings, *, has_more_keys: bool = False) -> tuple[Settings, tuple[str, ...]]:
    """The settings to go on with, and the names of what takes effect only at the next start.

    `has_more_keys`: there are others than those of the file. Raises `SettingsError` where the new ones would open
    the running listener to everybody.
    """
    kept = {name: getattr(old.server, name) for name in _BOUND_SERVER}
    waiting = [f"server.{name}" for name, value in kept.items() if getattr(new.server, name) != value]
    if new.ledger != old.ledger:
        waiting.append("ledger")
    thinking = replace(old.thinking, repair=new.thinking.repair)
    if new.state != old.state or new.thoughts_secret != old.thoughts_secret:
        waiting.append("state")
    if new.thinking != thinking:
        waiting.append("thinking")
    if new.admin.listen != old.admin.listen:
        waiting.append("admin.listen")
    merged = replace(
        new,
        server=replace(new.server, **kept),
        ledger=old.ledger,
        state=old.state,
        thinking=thinking,
        thoughts_secret=old.thoughts_secret,
        admin=replace(new.admin, listen=old.admin.listen),
    )
    if merged.open_mode and not has_more_keys and not is_loopback(merged.server.host):
        raise SettingsError(
            [
                f"keys: the gateway listens on {merged.server.host}, so it cannot go on without keys; "
                "keep one, or stop it and start it on 127.0.0.1"
            ],
            new.source,
        )
    return merged, tuple(waiting)
