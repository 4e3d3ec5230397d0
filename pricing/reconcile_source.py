"""Where a bill comes from: a file, or an address on this machine. Nobody else is asked, so no keys are needed."""

import ipaddress
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, urlsplit

from pricing.reconcile.bills import BillError

TIMEOUT_S: Final = 30.0
_OK: Final = 200


def read_source(name: str, *, timeout_s: float = TIMEOUT_S) -> bytes:
    """The bytes of a file, or what an http:// address on loopback answers. Raises `BillError`. Blocks."""
    if "://" not in name:
        try:
            return Path(name).read_bytes()
        except OSError as err:
            raise BillError(f"{name} cannot be read: {err.strerror or err}") from err
    parts = urlsplit(name)
    if parts.scheme != "http" or not _is_loopback(parts.hostname or ""):
        raise BillError(f"{name} is not on this machine; download it (it may want your key) and name the file")
    return _asked(name, parts, timeout_s)


def _asked(name: str, parts: SplitResult, timeout_s: float) -> bytes:
    try:
        connection = HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)
    except ValueError as err:
        raise BillError(f"{name} is no address: {err}") from err
    try:
        connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else "") or "/")
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, HTTPException) as err:
        raise BillError(f"{name} does not answer: {err}") from err
    finally:
        connection.close()
    if answer.status != _OK:
        raise BillError(f"{name} answered {answer.status} {answer.reason}")
    return body


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
