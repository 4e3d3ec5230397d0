"""What one emulator remembers between requests."""

from backends.emulator.cache import PrefixCache
from backends.emulator.clock import Clock
from backends.emulator.config import EmulatorConfig
from backends.emulator.invoice import Invoice
from backends.emulator.seen import SeenLog


class State:
    """Configuration, clock, prefix cache, invoice and the requests seen. Lives in one event loop: no locks."""

    def __init__(self, config: EmulatorConfig) -> None:
        self.config = config
        self.profile = config.profile
        self.clock = Clock(config.clock)
        self.window_tokens = config.context_tokens or self.profile.context_tokens
        self.block_tokens = config.block_tokens or self.profile.block_tokens
        self.cache = PrefixCache(block_tokens=self.block_tokens, max_blocks=config.max_cache_blocks)
        self.invoice = Invoice(config.max_invoice_lines)
        self.seen = SeenLog(max_requests=config.max_requests, max_bytes=config.max_requests_bytes)
        self.chats = 0

    def reset(self) -> None:
        """As new: empty cache, invoice and log, the clock as it was set. Request numbers go on."""
        self.clock.reset()
        self.cache.clear()
        self.invoice = Invoice(self.config.max_invoice_lines)
        self.seen.clear()

    def organisation(self, key: str) -> str:
        """Whose cache a key uses."""
        return self.config.organisations.get(key, f"key:{key}")
