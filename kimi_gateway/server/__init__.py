"""The HTTP server: uvicorn inside our own event loop, with a life that is ours.

uvicorn's `serve` takes over the signals and closes its listener at once; a gateway that drains has to go on
answering first. So only its parts are used here: the protocol, `startup` and the tick that keeps the date.

    sockets      the address: bound, and room for its connections
    protocol     one connection: bounds on its heads, answers to what is no HTTP, an end at once
    gate         what is refused before the application sees it
    listener     one application on one socket, from its start to its end
"""

from kimi_gateway.server.gate import AsgiApp, Gate, Message, Receive, Scope, Send
from kimi_gateway.server.listener import KEEPALIVE_S, Listener
from kimi_gateway.server.protocol import HEAD_LIMIT_BYTES, HEAD_TIMEOUT_S, BoundedProtocol, without_upgrade
from kimi_gateway.server.sockets import ListenError, bind, raise_descriptor_limit

__all__ = [
    "HEAD_LIMIT_BYTES",
    "HEAD_TIMEOUT_S",
    "KEEPALIVE_S",
    "AsgiApp",
    "BoundedProtocol",
    "Gate",
    "ListenError",
    "Listener",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "bind",
    "raise_descriptor_limit",
    "without_upgrade",
]
