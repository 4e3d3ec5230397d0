"""Ports of the gateway: what the relay needs from the shell, each with a real adapter and one for tests."""

from typing import Protocol

from pricing.ledger.row import LedgerRow


class Books(Protocol):
    """Where requests are booked. Each call is one append to the local journal, about a microsecond."""

    def open(self, row: LedgerRow) -> None:
        """Books that a request is about to go upstream. Raises `errors.LedgerUnavailable`."""
        ...

    def progress(self, row: LedgerRow) -> None:
        """Books what has been delivered so far. Never raises: a full journal drops progress first."""
        ...

    def settled(self, row: LedgerRow) -> None:
        """Books the end, once per request. Never raises: a failure is logged and counted."""
        ...


class Answer(Protocol):
    """An answer under way that a shutdown may have to end."""

    def interrupt(self) -> None:
        """Ends it with `shutting_down`: an error event in a stream, a 503 where nothing was sent yet."""
        ...
