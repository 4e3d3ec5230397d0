"""What a gateway says on standard output when it is ready: where it is, what stands behind it, who may call."""

from pathlib import Path
from typing import Final

from kimi_gateway import __version__
from kimi_gateway.settings import Route, Settings
from pricing.ledger.address import redacted

_SHOWN: Final = 8


def url_of(host: str, port: int) -> str:
    """The address clients use; a gateway on all addresses is shown as this machine."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"


def banner(settings: Settings, url: str, *, metrics_url: str, emulator: bool) -> str:
    """The text. `url` is the gateway's address without /v1; `emulator` says that nothing was configured."""
    lines = [f"Kimi Gateway {__version__}", f"  base URL  {url}/v1"]
    for label, target in zip(["targets", *[""] * len(settings.targets)], settings.targets, strict=False):
        lines.append(f"  {label:<9} {target.name} ({target.dialect}) {target.base_url}")
    for label, route in zip(["routes", *[""] * len(settings.routes)], settings.routes, strict=False):
        lines.append(f"  {label:<9} {_route_text(route)}")
    lines.append(
        f"  ledger    {redacted(settings.ledger.url)} (journal {Path(settings.ledger.journal_dir).resolve()})"
    )
    lines.append(f"  metrics   {metrics_url}/metrics")
    lines.append(f"  callers   {_callers(settings)}")
    if settings.source:
        lines.append(f"  settings  {Path(settings.source).resolve()}")
    if emulator:
        lines.append(
            "  note      no target is configured, so the built-in emulator answers with synthetic text; set "
            "MOONSHOT_API_KEY, VLLM_BASE_URL or [[targets]] for the real thing"
        )
    return "\n".join(lines)


def _route_text(route: Route) -> str:
    names = ", ".join((route.model, *route.aliases))
    return f"{names} -> {', '.join(route.targets)}"


def _callers(settings: Settings) -> str:
    if settings.open_mode:
        return "open mode: no keys, so only programs on this machine are served"
    names = sorted(settings.key_ring.names)
    if not names:
        return "nobody: no key works, or the ledger that has them does not answer"
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{len(names)} key{'' if len(names) == 1 else 's'} ({', '.join(names[:_SHOWN])}{more})"
