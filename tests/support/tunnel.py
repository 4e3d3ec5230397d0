"""Names of the internet that lead to this machine: a certificate for them and a proxy that connects them here."""

import shutil
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typing_extensions import override


def self_signed(directory: Path, names: str) -> tuple[Path, ssl.SSLContext]:
    """A certificate (PEM) for subjectAltName `names`, and a server's context with it. Skips without openssl."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl command to make a certificate with")
    key, cert = directory / "key.pem", directory / "cert.pem"
    options = f"req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -addext subjectAltName={names}"
    subprocess.run(
        ["openssl", *options.split(), "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return cert, context


@contextmanager
def tunnel(port: int) -> Iterator[tuple[str, list[str]]]:
    """An HTTP proxy whose every CONNECT ends at this port; its URL, and the places that were asked for."""
    asked: list[str] = []

    class Handler(socketserver.BaseRequestHandler):
        request: socket.socket

        @override
        def handle(self) -> None:
            head = b""
            while b"\r\n\r\n" not in head:
                head += self.request.recv(4096)
            asked.append(head.split(b" ")[1].decode())
            with socket.create_connection(("127.0.0.1", port)) as far:
                self.request.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                back = threading.Thread(target=_pump, args=(far, self.request))
                back.start()
                _pump(self.request, far)
                back.join()

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()


def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Passes bytes on until the source ends, then says so."""
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return  # one of them is gone
