"""Which version of its engine a target runs, where its dialect says how to ask.

Nothing hangs on the answer but what people are told, so every failure is the same: it is not known.
"""

import asyncio
import re
from typing import Final
from urllib.parse import urlsplit, urlunsplit

from backends.catalog import DIALECTS
from backends.json import JsonError, as_object, as_str, decode
from backends.ports import Call, Reply, Upstream, UpstreamFault
from kimi_gateway.settings import Target

_MAX_BODY_BYTES: Final = 1 << 20
_API_ROOT: Final = re.compile(r"/v\d+\w*/?\Z")
_PLAIN: Final = re.compile(r"[\w.+:/ -]{1,64}", re.ASCII)
"""What a version may look like: it gets into logs and reports."""


async def ask_version(upstream: Upstream, target: Target, *, timeout_s: float) -> str:
    """The version a target tells, within `timeout_s` for all its paths; "" where it tells none."""
    dialect = DIALECTS[target.dialect]
    try:
        async with asyncio.timeout(timeout_s):
            for path in dialect.version_paths:
                version = version_in(await _asked(upstream, target, path, timeout_s), dialect.version_field)
                if version:
                    return version
    except TimeoutError:
        pass
    return ""


def version_in(body: bytes, name: str) -> str:
    """The version in a JSON object, in the member `name`; "" where there is none that can be shown."""
    try:
        found = as_object(decode(body))
    except JsonError:
        return ""
    version = (as_str(found.get(name)) or "") if found is not None else ""
    return version if _PLAIN.fullmatch(version) else ""


def root_of(base_url: str) -> str:
    """The server's root, for an address that ends in /v1 or in nothing."""
    parts = urlsplit(base_url)
    return urlunsplit(parts._replace(path=_API_ROOT.sub("", parts.path).rstrip("/")))


async def _asked(upstream: Upstream, target: Target, path: str, timeout_s: float) -> bytes:
    """The body at a path; b"" where there is none. It may hold an engine's secrets, so only one member is read."""
    headers = {"accept": "application/json"}
    if target.api_key is not None:
        headers["authorization"] = f"Bearer {target.api_key.reveal()}"
    call = Call(
        url=f"{root_of(target.base_url)}{path}",
        headers=headers,
        body=b"",
        connect_timeout_s=min(timeout_s, target.connect_timeout_s),
        method="GET",
    )
    try:
        reply = await upstream.open(call)
        try:
            return await _body(reply, timeout_s) if reply.status == 200 else b""
        finally:
            reply.close()
    except UpstreamFault:
        return b""


async def _body(reply: Reply, timeout_s: float) -> bytes:
    parts: list[bytes] = []
    size_bytes = 0
    while data := await reply.read(timeout_s):
        size_bytes += len(data)
        if size_bytes > _MAX_BODY_BYTES:
            return b""
        parts.append(data)
    return b"".join(parts)
