"""What the emulator refuses.

Refusal    an answer with an error body, in the dialect's words
"""


class Refusal(Exception):
    """A request that is answered with an error. `status` is HTTP's; the other fields go into the body as the
    dialect writes it (Moonshot: `message` and `type` only)."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        type: str = "invalid_request_error",
        param: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.type = type
        self.param = param


def invalid(message: str, *, param: str | None = None) -> Refusal:
    """A 400 that says what is wrong with the request."""
    return Refusal(f"Invalid request: {message}", param=param)
