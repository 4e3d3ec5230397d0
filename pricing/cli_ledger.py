"""The ledger for a command that only reads: opened, brought up to date as far as possible, never created."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from pricing.cli_settings import Places
from pricing.ledger.address import ledger_id
from pricing.ledger.drain import Drainer
from pricing.ledger.errors import LedgerMissing, StoreError
from pricing.ledger.store import Store
from pricing.ledger.undrained import Undrained, undrained


class MissingLedger(Exception):
    """There is no ledger; the message says how to get or find one."""


@dataclass(frozen=True, slots=True)
class OpenLedger:
    """A ledger, what is not in it yet, and why the journal could not be drained (empty where it could)."""

    store: Store
    missing: Undrained
    problem: str

    @property
    def notes(self) -> list[str]:
        """What a reader of any figure must know: which ledger, and what it lacks."""
        if self.missing.records == 0:
            return [f"ledger {self.store.name}; every journal record is in it", *self._troubles]
        return [f"ledger {self.store.name}", *self.warnings]

    @property
    def warnings(self) -> list[str]:
        """The part of it that no program may miss; empty where all is well."""
        count = self.missing.records
        if count == 0:
            return self._troubles
        records = "1 journal record is" if count == 1 else f"{count:,} journal records are"
        return [f"{records} not in the ledger yet (requests of running gateways)", *self._troubles]

    @property
    def _troubles(self) -> list[str]:
        troubles = []
        if self.problem:
            troubles.append(f"the journal could not be drained: {self.problem}")
        if self.missing.damaged_files:
            troubles.append(
                f"{self.missing.damaged_files} journal files (*.damaged) hold bytes that are no record; "
                "what was whole in them is in the ledger"
            )
        return troubles


@contextlib.contextmanager
def open_ledger(places: Places) -> Iterator[OpenLedger]:
    """The ledger with the journals of dead processes drained into it. Raises `MissingLedger`, `StoreError`."""
    try:
        store = Store(places.ledger_url)
    except LedgerMissing as err:
        raise MissingLedger(
            f"{err}. Start the gateway once (`kimi-gateway serve` makes the ledger), or name another one with "
            "--ledger, KIMI_LEDGER_URL or [ledger] url in the configuration (--config)"
        ) from err
    try:
        problem = _drain(places)
        yield OpenLedger(store, undrained(places.journal_dir, ledger_id(places.ledger_url), store), problem)
    finally:
        store.close()


def _drain(places: Places) -> str:
    drainer = Drainer(places.journal_dir, places.ledger_url, own=None)
    try:
        drainer.drain_once()
    except (StoreError, OSError) as err:
        return str(err)
    finally:
        drainer.close()
    return ""
