"""Downloads Kimi's vocabulary, once and on demand: the only part of `pricing` that uses the network.

From the model's public repository at a pinned revision, over proxies that the environment names. What arrives is
checked against its pin before it gets its name, so that a file in the cache is the right one or none. Redirects
are followed to https only.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

import httpx2

from pricing.tokens import KIMI_K3, TokenizerError, VocabularyPin
from pricing.vocabulary import VARIABLE, VocabularyError, read_vocabulary

REPOSITORY: Final = "moonshotai/Kimi-K3"
REVISION: Final = "f831ab66814297da540d832a5235f8e904f29d06"
URL: Final = f"https://huggingface.co/{REPOSITORY}/resolve/{REVISION}/tiktoken.model"

TIMEOUT_S: Final = 30.0  # longest silence, connecting included; there is no limit for the whole
_REDIRECTS_MAX: Final = 5
_REFUSED: Final = (401, 403)
_OTHER_WAY: Final = f"or get {KIMI_K3.name} of {REPOSITORY} some other way and set {VARIABLE} to its path"

Progress = Callable[[int, int], None]
"""Called with the bytes received so far and the bytes expected."""


class FetchError(TokenizerError):
    """The vocabulary was not downloaded, and nothing was changed; the message says why and what else to do."""


@dataclass(frozen=True, slots=True)
class Fetched:
    """Where the vocabulary is now, and whether it had to be downloaded for that."""

    path: Path
    downloaded: bool


def fetch_vocabulary(
    path: Path,
    *,
    url: str = URL,
    pin: VocabularyPin = KIMI_K3,
    timeout_s: float = TIMEOUT_S,
    on_progress: Progress | None = None,
    transport: httpx2.BaseTransport | None = None,
) -> Fetched:
    """The pinned file, under this path; missing folders are made, a wrong file there is replaced.

    A right one that is there already is kept without asking the network. `transport` stands in for the network
    and its proxies. Raises `FetchError`. Blocks.
    """
    with suppress(VocabularyError):
        read_vocabulary(path, pin)
        return Fetched(path, downloaded=False)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _temporary(path) as (file, temporary):
            _download(file, url, pin, timeout_s, on_progress, transport)
            file.close()
            temporary.replace(path)
    except OSError as err:
        raise FetchError(f"{path} cannot be written: {err.strerror or err}") from err
    return Fetched(path, downloaded=True)


@contextmanager
def _temporary(path: Path) -> Iterator[tuple[IO[bytes], Path]]:
    """A file beside the path, on the same file system; gone at the end unless it was renamed."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, 0o644)  # mkstemp's 0600 would keep a service user from reading it
            yield file, temporary
    finally:
        temporary.unlink(missing_ok=True)


def _download(
    file: IO[bytes],
    url: str,
    pin: VocabularyPin,
    timeout_s: float,
    on_progress: Progress | None,
    transport: httpx2.BaseTransport | None,
) -> None:
    """Writes the pinned file. Raises `FetchError` for an answer that is not that, `OSError` from the disk."""
    with _network_faults(), _client(timeout_s, transport) as client:
        response = _answer(client, url)
        try:
            _check_head(response, pin)
            digest, received = hashlib.sha256(), 0
            for piece in response.iter_bytes():
                received += len(piece)
                if received > pin.size_bytes:
                    raise FetchError(_not_pinned(response, pin, f"it has more than {pin.size_bytes:,} bytes"))
                digest.update(piece)
                file.write(piece)
                if on_progress is not None:
                    on_progress(received, pin.size_bytes)
        finally:
            response.close()
    problem = pin.mismatch(size_bytes=received, sha256=digest.hexdigest())
    if problem is not None:
        raise FetchError(_not_pinned(response, pin, problem))


def _client(timeout_s: float, transport: httpx2.BaseTransport | None) -> httpx2.Client:
    headers = {"accept-encoding": "identity", "user-agent": "kimi-pricing"}
    try:
        return httpx2.Client(headers=headers, timeout=timeout_s, transport=transport)
    except (ImportError, ValueError, httpx2.InvalidURL) as err:
        # Its message may hold the proxy's password.
        raise FetchError(
            "the proxy that the environment names cannot be used; HTTPS_PROXY takes http:// and https:// addresses"
        ) from err
    except OSError as err:
        raise FetchError(
            f"the certificates that SSL_CERT_FILE or SSL_CERT_DIR names cannot be read: {err}"
        ) from err


def _answer(client: httpx2.Client, url: str) -> httpx2.Response:
    """The answer after all redirects, its body not yet read."""
    request = client.build_request("GET", url)
    for _ in range(_REDIRECTS_MAX + 1):
        response = client.send(request, stream=True)
        if not response.has_redirect_location:
            return response
        response.close()
        following = response.next_request
        if following is None or following.url.scheme != "https":
            raise FetchError(f"{_place(response.url)} redirects to an address that is not https; {_OTHER_WAY}")
        request = following
    raise FetchError(f"{_place(request.url)}: more than {_REDIRECTS_MAX} redirects; {_OTHER_WAY}")


def _check_head(response: httpx2.Response, pin: VocabularyPin) -> None:
    where = _place(response.url)
    if response.status_code in _REFUSED:
        raise FetchError(f"{where} answered {response.status_code}: it wants a login; {_OTHER_WAY}")
    if not response.is_success:
        raise FetchError(f"{where} answered {response.status_code} {response.reason_phrase}; {_OTHER_WAY}")
    length = response.headers.get("content-length", "")
    if length.isdecimal() and int(length) != pin.size_bytes:
        raise FetchError(_not_pinned(response, pin, f"it has {int(length):,} bytes"))


@contextmanager
def _network_faults() -> Iterator[None]:
    try:
        yield
    except httpx2.TimeoutException as err:
        raise FetchError(f"{_asked(err)} did not answer in time; {_OTHER_WAY}") from err
    except httpx2.ProxyError as err:
        raise FetchError(f"the proxy that the environment names refused: {err}; {_OTHER_WAY}") from err
    except httpx2.ConnectError as err:
        raise FetchError(
            f"{_asked(err)} cannot be reached: {err}; look at the network and at HTTPS_PROXY, {_OTHER_WAY}"
        ) from err
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as err:
        raise FetchError(f"this is no address to download from: {err} Give one that starts with https://") from err
    except httpx2.HTTPError as err:
        raise FetchError(f"the download from {_asked(err)} broke off: {err}; try again, {_OTHER_WAY}") from err


def _asked(err: httpx2.HTTPError) -> str:
    """The address that failed, which after a redirect is not the first one."""
    return _place(err.request.url)


def _place(url: httpx2.URL) -> str:
    """Scheme, host and path; a redirect's query may hold a signature."""
    return f"{url.scheme}://{url.netloc.decode()}{url.path}"


def _not_pinned(response: httpx2.Response, pin: VocabularyPin, problem: str) -> str:
    return (
        f"{_place(response.url)} is not the vocabulary: {problem}; expected {pin.size_bytes:,} bytes with sha256 "
        f"{pin.sha256}, so this may be the page of a login or a proxy; {_OTHER_WAY}"
    )
