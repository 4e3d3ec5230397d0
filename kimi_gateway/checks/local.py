"""Looks at this machine: addresses to listen on, the ledger, the journal, their disks, the rate cards.

Nothing is left behind: ports are let go at once, what is written to try a directory has no name, and a ledger that
is not there yet is not made.
"""

import errno
import fcntl
import http.client
import shutil
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from backends.json import JsonError, as_object, as_str, decode
from kimi_gateway.banner import url_of
from kimi_gateway.checks.findings import Findings, Mistake
from kimi_gateway.routes.health import SERVICE
from kimi_gateway.server import ListenError, bind
from kimi_gateway.settings import Settings
from pricing.cards import CardBook, CardError, load_cards
from pricing.ledger.address import redacted, sqlite_path
from pricing.ledger.errors import LedgerMissing, LedgerOutdated, StoreError
from pricing.ledger.store import Store

LEDGER_FREE_BYTES: Final = 64 << 20
"""Less room than this on the ledger's disk is called almost full: about 30,000 rows."""

_BUSY_MS: Final = 5000
_HEALTH_S: Final = 2.0
_MAX_HEALTH_BYTES: Final = 4096
_UNITS: Final = ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"), (1, "bytes"))


def look_at_addresses(settings: Settings) -> Findings:
    """Whether the gateway's own address and that of /metrics can be listened on."""
    found = Findings()
    server, listen = settings.server, settings.admin.listen
    _try_address(found, "server.port", server.host, server.port, remedy="")
    if listen is None:
        return found
    if listen == (server.host, server.port) and server.port:
        what = f"{_address(*listen)} is the gateway's own address"
        found.wrong(Mistake("admin.listen", what, 'give it a port of its own, or leave it out ("")'))
        found.bad("metrics", _address(*listen))
    else:
        _try_address(found, "admin.listen", *listen, remedy="set admin.listen to another address")
    return found


def _try_address(found: Findings, where: str, host: str, port: int, *, remedy: str) -> None:
    label = "address" if where.startswith("server") else "metrics"
    try:
        bind(host, port).close()
    except ListenError as err:
        version = _gateway_at(host, port) if _is_taken(err) else ""
        if version:
            found.well(label, _address(host, port), f"a gateway runs there already (version {version})")
            found.note(f"{where}: a second gateway beside the one that runs needs another port")
            return
        what, _, own = str(err).partition("; ")
        found.wrong(Mistake(where, what, remedy or own))
        found.bad(label, _address(host, port))
    else:
        found.well(label, _address(host, port), "free" if port else "a free port is picked at each start")


def _is_taken(err: ListenError) -> bool:
    return isinstance(err.__cause__, OSError) and err.__cause__.errno == errno.EADDRINUSE


def _gateway_at(host: str, port: int) -> str:
    """The version of the gateway that listens on an address of this machine, as its /health says; "" where
    something else does."""
    place = urlsplit(url_of(host, port))
    connection = http.client.HTTPConnection(place.hostname or "", port, timeout=_HEALTH_S)
    try:
        connection.request("GET", "/health")
        told = as_object(decode(connection.getresponse().read(_MAX_HEALTH_BYTES))) or {}
    except (OSError, http.client.HTTPException, JsonError):
        return ""
    finally:
        connection.close()
    return (as_str(told.get("version")) or "unknown") if told.get("service") == SERVICE else ""


def _address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def look_at_books(settings: Settings, *, busy_timeout_ms: int = _BUSY_MS) -> Findings:
    """Whether requests can be booked: the ledger, the journal and the room on their disks.

    Waits `busy_timeout_ms` for another writer of the ledger to end.
    """
    found = Findings()
    url, journal = settings.ledger.url, Path(settings.ledger.journal_dir)
    path = sqlite_path(url)
    problem, result = _ledger_state(url, path, busy_timeout_ms)
    if problem is None and path is not None:
        problem = directory_problem("ledger.url", path.parent) or room_problem(
            "ledger.url", path.parent, _free_bytes(path.parent), LEDGER_FREE_BYTES, "make room on it"
        )
    if problem is None:
        found.well("ledger", redacted(url), result)
    else:
        found.bad("ledger", redacted(url))
    found.wrong(problem, _look_at_journal(found, journal, settings.ledger.max_journal_bytes))
    return found


def _look_at_journal(found: Findings, journal: Path, max_bytes: int) -> Mistake | None:
    problem = directory_problem("ledger.journal_dir", journal)
    if problem is not None:
        found.bad("journal", str(journal))
        return problem
    free_bytes = _free_bytes(journal)
    wanted_bytes = max(0, max_bytes - _used_bytes(journal))
    remedy = f"make room on it, or lower ledger.max_journal_bytes ({max_bytes})"
    problem = room_problem("ledger.journal_dir", journal, free_bytes, wanted_bytes, remedy)
    if problem is None:
        found.well("journal", str(journal.resolve()), f"writable, {size_text(free_bytes)} free")
    else:
        found.bad("journal", str(journal.resolve()))
    return problem


def _ledger_state(url: str, path: Path | None, busy_timeout_ms: int) -> tuple[Mistake | None, str]:
    """What keeps the ledger from being written, and what is to be said where nothing does."""
    if path is not None and path.is_dir():
        return Mistake("ledger.url", f"{path} is a directory", "name a file in it: sqlite:///FILE"), ""
    if path is not None and not _is_there(path):
        return None, "will be made at the start"
    try:
        store = Store(url, busy_timeout_ms=busy_timeout_ms)
        try:
            store.book((), {})  # an empty transaction, but one that writes
        finally:
            store.close()
    except LedgerMissing:
        return None, "will be made at the start"
    except LedgerOutdated:
        return None, "will be migrated at the start"
    except StoreError as err:
        what, _, remedy = str(err).partition("; ")
        return Mistake(
            "ledger.url", what, remedy or "let this user write to it, end what holds it, or name another"
        ), ""
    return None, "writable"


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except PermissionError:  # in a directory that may not be entered
        return False


def directory_problem(where: str, directory: Path) -> Mistake | None:
    """What keeps files from being made and locked in a directory, or it from being made; None where nothing."""
    base = _nearest(directory)
    if not base.is_dir():
        return Mistake(where, f"{base} is a file, so {directory} cannot be a directory", "name another place")
    try:
        with tempfile.TemporaryFile(dir=base) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as err:
        remedy = "let this user write there, or name another place on a local disk"
        return Mistake(where, f"{base} cannot be written ({err.strerror})", remedy)
    return None


def room_problem(where: str, directory: Path, free_bytes: int, wanted_bytes: int, remedy: str) -> Mistake | None:
    """The mistake of a disk with less room than may be needed; None where there is enough."""
    if free_bytes >= wanted_bytes:
        return None
    what = f"the disk of {directory} has {size_text(free_bytes)} left, {size_text(wanted_bytes)} may be needed"
    return Mistake(where, what, remedy)


def size_text(size_bytes: int) -> str:
    """The size in the unit that fits, with one decimal place."""
    for unit_bytes, name in _UNITS:
        if size_bytes >= unit_bytes:
            return f"{size_bytes / unit_bytes:.1f} {name}" if unit_bytes > 1 else f"{size_bytes} {name}"
    return "0 bytes"


def _nearest(directory: Path) -> Path:
    """The directory, or the nearest one above it that is there; a file where one stands in the way."""
    resolved = directory.expanduser().resolve()
    return next((path for path in (resolved, *resolved.parents) if _is_there(path)), Path("/"))


def _free_bytes(directory: Path) -> int:
    return shutil.disk_usage(_nearest(directory)).free


def _used_bytes(directory: Path) -> int:
    """What the files directly in a directory take; 0 where it is not there."""
    try:
        return sum(entry.stat().st_size for entry in directory.iterdir() if entry.is_file())
    except OSError:
        return 0


def look_at_cards(settings: Settings, now_s: float) -> tuple[Findings, CardBook]:
    """Whether the rate cards can be read, and the book (the shipped cards alone where one's own are wrong).

    `now_s` is Unix seconds.
    """
    found, folder = Findings(), settings.pricing.cards_dir
    try:
        book = load_cards(Path(folder) if folder else None)
    except CardError as err:
        what, _, remedy = str(err).partition("; ")
        found.wrong(Mistake("pricing.cards_dir", what, remedy))
        found.bad("rate cards", folder)
        return found, load_cards(None)
    count = len(book.in_force(datetime.fromtimestamp(now_s, UTC).date()))
    found.well("rate cards", folder or "as shipped", f"{count} in force today")
    return found, book
