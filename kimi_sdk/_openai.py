"""The one door to `openai`, and through it to the network. Its exceptions end here.

`openai` reads variables of its own (OPENAI_API_KEY, OPENAI_ADMIN_KEY, OPENAI_ORG_ID, OPENAI_CUSTOM_HEADERS …):
each is overridden, so that nothing meant for another service is ever sent to this one.
"""

from collections.abc import Mapping
from typing import Any, cast

import openai

from backends.json import JsonObject
from kimi_sdk.errors import ConnectionFailed, NoAnswerInTime
from kimi_sdk.wire import Answer, Endpoint

_CONNECT_TIMEOUT_S = 10.0
_OWN_PARAMETERS = ("model", "messages")


class Connection:
    """Sends chat requests to one endpoint. Connections are kept alive until `close`. `timeout_s` is the longest
    silence, in seconds, not the longest answer."""

    def __init__(self, endpoint: Endpoint, *, timeout_s: float) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self._client = openai.OpenAI(
            api_key=endpoint.api_key or "none",
            admin_api_key="",
            organization="",
            project="",
            webhook_secret="",
            base_url=endpoint.base_url,
            timeout=openai.Timeout(timeout_s, connect=min(timeout_s, _CONNECT_TIMEOUT_S)),
            max_retries=0,  # repeating is the gateway's: a second owner would multiply attempts and bills
        )
        self._headers: dict[str, str | openai.Omit] = {
            "Authorization": f"Bearer {endpoint.api_key}" if endpoint.api_key else openai.Omit(),
            "OpenAI-Organization": openai.Omit(),
            "OpenAI-Project": openai.Omit(),
        }

    def complete(self, body: JsonObject) -> Answer:
        """The answer to one chat request, whatever its status. Raises `ConnectionFailed`, `NoAnswerInTime`."""
        rest = {name: value for name, value in body.items() if name not in _OWN_PARAMETERS}
        try:
            raw = self._client.chat.completions.with_raw_response.create(
                model=cast(str, body["model"]),
                messages=cast(Any, body["messages"]),
                extra_body=rest,
                extra_headers=self._headers,
            )
        except openai.APIStatusError as err:
            return Answer(err.response.status_code, _lowered(err.response.headers), err.response.content)
        except openai.APIConnectionError as err:
            raise self._failure(err) from err
        return Answer(raw.status_code, _lowered(raw.headers), raw.content)

    def _failure(self, err: openai.APIConnectionError) -> ConnectionFailed:
        # By name, because the library below openai has no other door: openai calls a connection that was never
        # made a timeout too, but then nothing was sent.
        cause = type(err.__cause__).__name__
        if isinstance(err, openai.APITimeoutError) and cause != "ConnectTimeout":
            return NoAnswerInTime(
                f"{self._endpoint.base_url} was silent for {self._timeout_s:g} s. It may still be working on the "
                "answer, and may bill it; give Chat a longer timeout_s"
            )
        return ConnectionFailed(
            f"no answer from {self._endpoint.base_url} (from {self._endpoint.base_url_origin}): "
            f"{err.__cause__ or cause}. Is the gateway running there? "
            "Give the address as base_url or in KIMI_BASE_URL"
        )

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()


def _lowered(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
