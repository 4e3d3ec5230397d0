"""The address: a bound socket, and as many descriptors as its connections need."""

import errno
import resource
import socket
from typing import Final

BACKLOG: Final = 2048
_SPARE_DESCRIPTORS: Final = 64  # journal, ledger, log, listener
_FEW_CONNECTIONS: Final = 1000  # what nobody asked for is worth a warning only where it is less than this


class ListenError(Exception):
    """The address cannot be listened on; the message says why and what to do."""


def bind(host: str, port: int) -> socket.socket:
    """A bound socket (port 0: one that the system picks). Raises `ListenError` with the remedy."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as err:
        raise ListenError(
            f"the host {host} is not an address of this machine ({err.strerror}); use --host 127.0.0.1"
        ) from err
    # A name with both kinds of address is meant as IPv4: clients are told 127.0.0.1.
    family, _, _, _, address = sorted(found, key=lambda entry: entry[0] != socket.AF_INET)[0]
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)  # now, so that a port that another process listens on is found out here
        sock.setblocking(False)
    except OSError as err:
        sock.close()
        raise ListenError(_listen_problem(host, port, err)) from err
    return sock


def _listen_problem(host: str, port: int, err: OSError) -> str:
    if err.errno == errno.EADDRINUSE:
        return (
            f"port {port} on {host} is taken by another process; stop that one, or choose another port with "
            "--port (0 picks a free one)"
        )
    if err.errno == errno.EACCES:
        return f"port {port} needs more rights than this process has; choose one above 1023 with --port"
    if err.errno == errno.EADDRNOTAVAIL:
        return f"the host {host} is not an address of this machine; use --host 127.0.0.1 or 0.0.0.0"
    return f"{host} port {port} cannot be listened on ({err.strerror}); choose others with --host and --port"


def raise_descriptor_limit(max_connections: int, *, chosen: bool = True) -> str:
    """Raises the limit of open descriptors to the hard one; says so where `max_connections` needs more.

    Each connection may need two: the client's and the upstream's. A number that nobody has `chosen` is a bound and
    no wish: then only a limit that is really low is worth a word.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            soft = hard
        except (OSError, ValueError):  # some systems state a hard limit above what they grant
            soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = 2 * max_connections + _SPARE_DESCRIPTORS
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return ""
    most = max(1, (soft - _SPARE_DESCRIPTORS) // 2)
    if not chosen and most >= _FEW_CONNECTIONS:
        return ""
    return (
        f"this process may open {soft} descriptors, but server.max_connections = {max_connections} can need "
        f"{needed}; raise the limit (ulimit -n {needed}) or lower max_connections to {most}"
    )
