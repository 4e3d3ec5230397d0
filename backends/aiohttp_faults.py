"""What went wrong in an aiohttp call, in the one vocabulary of `backends.faults`.

What decides is whether the upstream can have seen the request: CONNECT and TLS say that it cannot. Messages name
the host and the operating system's reason; never a header, a path, a body or a proxy's credentials.
"""

import socket
import ssl

import aiohttp
from aiohttp.http_exceptions import ContentEncodingError

from backends.faults import Fault, FaultKind


def open_fault(err: BaseException, where: str, connect_timeout_s: float) -> Fault:
    """The fault of a call that got no answer. `where` is the upstream's `host:port`."""
    early = _before_sending(err, where, connect_timeout_s)
    if early is not None:
        return early
    match err:
        case aiohttp.ClientResponseError():
            return Fault(
                FaultKind.SERVER,
                f"{where} sent an answer whose head is not valid HTTP/1.1 or is too large; "
                "check that the address is that of an API",
            )
        case aiohttp.ServerDisconnectedError():
            return Fault(FaultKind.RESET, f"{where} closed the connection without an answer")
        case OSError():
            return Fault(FaultKind.RESET, f"the connection to {where} broke before an answer: {_reason(err)}")
        case ValueError():
            return Fault(
                FaultKind.REQUEST,
                f"the call to {where} cannot be sent: a header holds a control character or the address is no URL",
            )
        case _:
            return Fault(FaultKind.RESET, f"the connection to {where} broke before an answer")


def _before_sending(err: BaseException, where: str, connect_timeout_s: float) -> Fault | None:
    """The fault if the upstream cannot have seen the request, else None."""
    match err:
        case aiohttp.ClientConnectorCertificateError() | aiohttp.ClientConnectorSSLError():
            return _tls_fault(err, where)
        case aiohttp.ClientConnectorDNSError():
            return Fault(
                FaultKind.CONNECT, f"the host name of {where} cannot be resolved: {_reason(err.os_error)}"
            )
        case aiohttp.ClientProxyConnectionError():
            return Fault(
                FaultKind.CONNECT,
                f"the proxy for {where} cannot be reached: {_reason(err.os_error)}; "
                "check the proxy variables of the environment, or list the host in NO_PROXY",
            )
        case aiohttp.ClientHttpProxyError():
            return Fault(
                FaultKind.CONNECT, f"the proxy answered {err.status} when asked to connect to {where}", err.status
            )
        case aiohttp.ClientConnectorError():
            return Fault(FaultKind.CONNECT, f"cannot connect to {where}: {_reason(err.os_error)}")
        case aiohttp.ConnectionTimeoutError():
            return Fault(FaultKind.CONNECT, f"no connection to {where} within {connect_timeout_s:g} s")
        case _:
            return None


def _tls_fault(
    err: aiohttp.ClientConnectorCertificateError | aiohttp.ClientConnectorSSLError, where: str
) -> Fault:
    cause = err.certificate_error if isinstance(err, aiohttp.ClientConnectorCertificateError) else err.os_error
    if isinstance(cause, ssl.SSLCertVerificationError):
        return Fault(
            FaultKind.TLS,
            f"the certificate of {where} was not accepted: {cause.verify_message}; where its issuer is your own, "
            "name a file with the issuer's certificate in SSL_CERT_FILE",
        )
    reason = getattr(cause, "reason", None) or "the handshake failed"
    return Fault(FaultKind.TLS, f"no TLS connection to {where}: {reason}; check https:// in its address")


def read_fault(err: BaseException | None, where: str) -> Fault:
    """The fault of an answer that broke off in its body."""
    if isinstance(err, ContentEncodingError) or (err and isinstance(err.__cause__, ContentEncodingError)):
        return Fault(FaultKind.SERVER, f"{where} sent a compressed answer that cannot be decoded")
    return Fault(FaultKind.RESET, f"{where} broke the connection in the middle of its answer")


def _reason(err: BaseException) -> str:
    """The operating system's words, without addresses or paths."""
    if isinstance(err, socket.gaierror):
        return str(err.args[-1])
    if isinstance(err, ConnectionRefusedError):
        return "connection refused"
    return (getattr(err, "strerror", None) or type(err).__name__).partition("[")[0].strip()
