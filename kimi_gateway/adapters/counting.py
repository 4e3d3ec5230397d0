"""Token counts in threads: the vocabulary is loaded once, where there is one, and never on the event loop."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from backends.json import JsonError, as_object, decode
from kimi_gateway.errors import InvalidRequest
from kimi_gateway.logs import Log
from pricing.tokens import TokenCount, TokenCounter, count_chat
from pricing.vocabulary import VocabularyError
from pricing.xtml import ChatError

_THREADS = 2  # encoding releases the GIL; more would only compete with the event loop for cores


class ThreadedCounting:
    """Counts chat requests in a small pool. `find` gives the vocabulary, None where estimates must do."""

    def __init__(self, find: Callable[[], TokenCounter | None], log: Log) -> None:
        self._find = find
        self._log = log
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="counting")
        self._counter: asyncio.Future[TokenCounter | None] | None = None

    async def count(self, body: bytes) -> TokenCount:
        """The tokens of a chat request's body. Raises `InvalidRequest` where it is none."""
        loop = asyncio.get_running_loop()
        if self._counter is None:
            self._counter = loop.run_in_executor(self._pool, self._load)
        counter = await asyncio.shield(self._counter)
        return await loop.run_in_executor(self._pool, _counted, body, counter)

    def close(self) -> None:
        """Ends the threads once what they are at is done."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _load(self) -> TokenCounter | None:
        """The vocabulary; an unusable one is said in the log, and counts are estimates."""
        try:
            return self._find()
        except VocabularyError as err:
            self._log.event(f"the vocabulary cannot be used, counts are estimates: {err}", level="warning")
            return None


def _counted(body: bytes, counter: TokenCounter | None) -> TokenCount:
    try:
        request = as_object(decode(body))
    except JsonError as err:
        raise InvalidRequest(
            f"the body is not JSON ({err}); send model and messages", code="invalid_json"
        ) from err
    if request is None:
        raise InvalidRequest("the body must be an object with model and messages", code="invalid_json")
    if not isinstance(request.get("messages"), list) or not request["messages"]:
        raise InvalidRequest(
            "messages is missing or empty; send at least one message", code="missing_field", param="messages"
        )
    try:
        return count_chat(request, counter)
    except ChatError as err:
        raise InvalidRequest(str(err), code="invalid_value", param=err.path) from err
