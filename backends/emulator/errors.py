"""What the emulator refuses.

Refusal    an answer with an error body, in the dialect's words
"""

from backends.json import JsonObject


class Refusal(Exception):
    """A request that is answered with an error. `status` is HTTP's; the other fields go into the body as the
    dialect writes it (Moonshot: `message` and `type` only).

    `reason` is the bare reason of a body that cannot be read, empty elsewhere: engines put it in the words of
    their validation library. `metadata` is OpenRouter's.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        param: str | None = None,
        reason: str = "",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        metadata: JsonObject | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.param = param
        self.reason = reason
        self.headers = headers
        self.metadata = metadata


def invalid(message: str, *, param: str | None = None) -> Refusal:
    """A 400 that says what in the request cannot be read."""
    return Refusal(f"Invalid request: {message}", param=param, reason=message)
