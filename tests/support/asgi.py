"""Serves an ASGI application over a real socket for the length of a test."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

_START_S = 10.0


@contextmanager
def serve(app: Any, *, shutdown_s: int = 1) -> Iterator[str]:
    """The base URL (`http://127.0.0.1:port`) of the app, served by uvicorn in a thread of its own.

    At the end open answers have `shutdown_s` seconds before they are cut. Raises `RuntimeError` where the server
    does not come up.
    """
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        app, log_level="critical", access_log=False, ws="none", timeout_graceful_shutdown=shutdown_s
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    try:
        deadline_s = time.monotonic() + _START_S
        while not server.started:
            if not thread.is_alive() or time.monotonic() > deadline_s:
                raise RuntimeError("the server did not start")
            time.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
