"""Faults that are answers: errors in the dialect's words, a page of somebody else, a queue that is full."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Final, cast

from backends.emulator.errors import Refusal
from backends.emulator.exchange import Exchange, full_script, refusal_script
from backends.emulator.fault_options import RETRY, STATUS, Kind, Option, Options
from backends.emulator.player import Script, Step
from backends.emulator.profile import LimitName, TroubleKind
from backends.emulator.wire import json_script

_LIMITS: Final = ("concurrency", "rpm", "tpm", "tpd")
_OWN_STATUS: Final = Option(0, "the status; 0: the dialect's own", most=599)
_MESSAGE: Final = Option("", "the message instead of the dialect's own")
_OVER_TOKENS: Final = 1_000  # how far beyond the window a made-up prompt is


def _refused(exchange: Exchange, refusal: Refusal, options: Options) -> Script:
    """The error with the wait that the options tell, in their form."""
    wait_s = options.count("retry_after_s")
    if not wait_s:
        return refusal_script(exchange.profile, refusal)
    match options.word("retry_form"):
        case "header":
            refusal.headers = ((b"retry-after", str(wait_s).encode()),)
        case "ms":
            refusal.headers = ((b"retry-after-ms", str(wait_s * 1000).encode()),)
        case "date":
            moment = datetime.fromtimestamp(exchange.now_s, UTC) + timedelta(seconds=wait_s)
            refusal.headers = ((b"retry-after", format_datetime(moment, usegmt=True).encode()),)
        case _:
            told = "try again after" in refusal.message
            refusal.message += "" if told else f", please try again after {wait_s} seconds"
    return refusal_script(exchange.profile, refusal)


def _trouble(kind: TroubleKind) -> Kind:
    """An error whose only choice is its status."""

    def apply(exchange: Exchange, script: Script, options: Options) -> Script:
        trouble = exchange.trouble(kind, status=options.count("status"))
        return _refused(exchange, exchange.profile.words.trouble(trouble), options)

    return Kind(_ABOUT[kind], apply, {"status": _OWN_STATUS, **RETRY})


def _rate_limited(exchange: Exchange, script: Script, options: Options) -> Script:
    wait_s = options.count("retry_after_s")
    most = options.count("most")
    trouble = replace(
        exchange.trouble("rate"),
        limit=cast(LimitName, options.word("limit")),
        most=most,
        current=most + 1,
        wait_s=wait_s,
    )
    return _refused(exchange, exchange.profile.words.trouble(trouble), options)


def _unauthorized(exchange: Exchange, script: Script, options: Options) -> Script:
    refusal = exchange.profile.words.wrong_key("wrong")
    if options.word("form") == "string":
        return json_script(401, {"error": "Unauthorized"})
    return refusal_script(exchange.profile, refusal)


def _http_error(exchange: Exchange, script: Script, options: Options) -> Script:
    refusal = exchange.profile.words.trouble(exchange.trouble("server", status=options.count("status")))
    refusal.message = options.word("message") or refusal.message
    return _refused(exchange, refusal, options)


def _error_200(exchange: Exchange, script: Script, options: Options) -> Script:
    refusal = exchange.profile.words.trouble(exchange.trouble("server", status=options.count("status")))
    refusal.message = options.word("message") or refusal.message
    return json_script(200, exchange.profile.words.error_body(refusal), json_type=exchange.profile.shape.json_type)


def _context(exchange: Exchange, script: Script, options: Options) -> Script:
    window, words = exchange.window_tokens, exchange.profile.words
    if options.word("over") == "prompt":
        refusal = words.too_long(window + _OVER_TOKENS, 0, window)
    elif words.limit_too_large is not None:
        refusal = words.limit_too_large("max_completion_tokens", window + _OVER_TOKENS, window)
    else:
        refusal = words.too_long(exchange.prompt_tokens, window, window)
    return refusal_script(exchange.profile, refusal)


def _queue_full(exchange: Exchange, script: Script, options: Options) -> Script:
    profile = exchange.profile
    refusal = profile.words.trouble(exchange.trouble("full", status=options.count("status")))
    done = options.flag("done", profile.done_after_error)
    return full_script(exchange, refusal, role=options.flag("role"), in_stream=True, done=done)


def _html(exchange: Exchange, script: Script, options: Options) -> Script:
    status = options.count("status")
    title = f"{status} {_TITLES.get(status, 'Error')}"
    page = (
        f"<html>\r\n<head><title>{title}</title></head>\r\n<body>\r\n<center><h1>{title}</h1></center>\r\n"
        "<hr><center>synthetic proxy</center>\r\n</body>\r\n</html>\r\n"
    ).encode()
    headers = ((b"content-type", b"text/html"), (b"content-length", str(len(page)).encode()))
    return Script(status=status, headers=headers, steps=(Step(page),))


_TITLES: Final = {200: "OK", 502: "Bad Gateway", 503: "Service Temporarily Unavailable", 504: "Gateway Time-out"}
_ABOUT: Final[Mapping[TroubleKind, str]] = {
    "overloaded": "the platform is overloaded: engine_overloaded_error, a 429",
    "quota": "the account is empty or suspended: exceeded_current_quota_error, a 429 (OpenRouter: 402)",
    "forbidden": "403",
    "filter": "the content filter refuses: 400 content_filter (OpenRouter: 403)",
}

KINDS: Final[Mapping[str, Kind]] = {
    "overloaded": _trouble("overloaded"),
    "rate_limited": Kind(
        "a limit of the account is reached: rate_limit_reached_error, a 429",
        _rate_limited,
        {
            "limit": Option("rpm", "which limit", _LIMITS),
            "most": Option(3, "the limit's value"),
            "retry_after_s": Option(1, "how long the client is told to wait", most=10**6),
            "retry_form": Option("text", "how it is told", ("header", "date", "ms", "text")),
        },
    ),
    "quota": _trouble("quota"),
    "unauthorized": Kind(
        "401",
        _unauthorized,
        {
            "form": Option(
                "dialect", 'its body: the dialect\'s, or {"error": "Unauthorized"}', ("dialect", "string")
            )
        },
    ),
    "forbidden": _trouble("forbidden"),
    "content_filter": _trouble("filter"),
    "context": Kind(
        "the prompt, or prompt and limit, are said not to fit into the window",
        _context,
        {"over": Option("prompt", "what is too long", ("prompt", "limit"))},
    ),
    "http_error": Kind("an error status", _http_error, {"status": STATUS, "message": _MESSAGE, **RETRY}),
    "error_200": Kind(
        "status 200 with an error as its JSON body, for streams too",
        _error_200,
        {"status": Option(502, "the status that the body names", least=400, most=599), "message": _MESSAGE},
    ),
    "queue_full": Kind(
        "the queue is full: 503, and inside a stream a 200 that says so in its first events",
        _queue_full,
        {
            "role": Option(True, "a role chunk goes before the error (SGLang, recorded, sends none)"),
            "done": Option(None, "[DONE] follows the error; by default as the dialect does"),
            "status": _OWN_STATUS,
        },
    ),
    "html": Kind(
        "the HTML page of a proxy",
        _html,
        {"status": Option(502, "the status", least=200, most=599)},
    ),
}
