"""What went wrong in a call of the lean client, in the one vocabulary of `backends.faults`.

What decides is whether the upstream can have seen the request: CONNECT and TLS say that it cannot. Messages name
the host and the operating system's reason; never a header, a path, a body or a proxy's credentials.
"""

import socket
import ssl

from backends.faults import Fault, FaultKind


class TunnelRefused(Exception):
    """The proxy did not open a tunnel; `status` is its answer, 0 where it gave none."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


def connect_fault(
    err: Exception, where: str, connect_timeout_s: float, *, is_tls: bool, is_proxied: bool
) -> Fault:
    """The fault of a call that got no connection. `where` is the upstream's `host:port`, `is_tls` its scheme."""
    match err:
        case TimeoutError() if err.errno is None:  # ours; the kernel's own has a number
            message = f"no connection to {where} within {connect_timeout_s:g} s"
        case ssl.SSLError():
            return _tls_fault(err, where if is_tls else f"the proxy for {where}")
        case TunnelRefused(status=0):
            message = f"the proxy for {where} gave no usable answer when asked to connect"
        case TunnelRefused():
            message = f"the proxy answered {err.status} when asked to connect to {where}"
            return Fault(FaultKind.CONNECT, message, err.status)
        case _ if is_proxied:
            message = (
                f"the proxy for {where} cannot be reached: {_reason(err)}; "
                "check the proxy variables of the environment, or list the host in NO_PROXY"
            )
        case socket.gaierror() | UnicodeError():
            message = f"the host name of {where} cannot be resolved: {_reason(err)}"
        case _:
            message = f"cannot connect to {where}: {_reason(err)}"
    return Fault(FaultKind.CONNECT, message)


def unsendable_fault(where: str) -> Fault:
    """A header or method that cannot be put on the wire."""
    return Fault(
        FaultKind.REQUEST,
        f"the call to {where} cannot be sent: its method is unknown or a header holds a control character",
    )


def unanswered_fault(where: str, err: Exception | None) -> Fault:
    """The connection ended before an answer's head was complete."""
    if err is None:
        return Fault(FaultKind.RESET, f"{where} closed the connection without an answer")
    return Fault(FaultKind.RESET, f"the connection to {where} broke before an answer: {_reason(err)}")


def head_fault(where: str) -> Fault:
    """The head of the answer cannot be taken."""
    return Fault(
        FaultKind.SERVER,
        f"{where} sent an answer whose head is not valid HTTP/1.1 or is too large; "
        "check that the address is that of an API",
    )


def cut_fault(where: str) -> Fault:
    """The body ended before it was complete, or in what is no body."""
    return Fault(FaultKind.RESET, f"{where} broke the connection in the middle of its answer")


def packed_fault(where: str) -> Fault:
    """A compressed body that is none, is cut, or unpacks to more than anyone asked for."""
    return Fault(FaultKind.SERVER, f"{where} sent a compressed answer that cannot be decoded")


def closed_fault(where: str) -> Fault:
    """The reply was closed by its owner."""
    return Fault(FaultKind.RESET, f"the answer of {where} was closed on our side")


def _tls_fault(err: ssl.SSLError, where: str) -> Fault:
    if isinstance(err, ssl.SSLCertVerificationError):
        return Fault(
            FaultKind.TLS,
            f"the certificate of {where} was not accepted: {err.verify_message}; where its issuer is your own, "
            "name a file with the issuer's certificate in SSL_CERT_FILE",
        )
    reason = err.reason or "the handshake failed"
    return Fault(FaultKind.TLS, f"no TLS connection to {where}: {reason}; check https:// in its address")


def _reason(err: BaseException) -> str:
    """The operating system's words, without addresses or paths."""
    if isinstance(err, socket.gaierror):
        return str(err.args[-1])
    if isinstance(err, ConnectionRefusedError):
        return "connection refused"
    return (getattr(err, "strerror", None) or type(err).__name__).partition("[")[0].strip()
