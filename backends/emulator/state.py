"""What one emulator remembers between requests."""

import hashlib
from collections import Counter, OrderedDict
from decimal import Decimal

from backends.emulator.cache import FOR_EVER_S, TTL_S, PrefixCache
from backends.emulator.clock import Clock
from backends.emulator.config import EmulatorConfig
from backends.emulator.invoice import Invoice
from backends.emulator.limits import Account
from backends.emulator.seen import SeenLog

_MAX_ACCOUNTS = 10_000
_NANO_DIGITS = 9


class State:
    """Configuration, clock, prefix cache, invoice and the requests seen. Lives in one event loop: no locks."""

    def __init__(self, config: EmulatorConfig) -> None:
        self.config = config
        self.profile = config.profile
        self.clock = Clock(config.clock)
        self.window_tokens = config.context_tokens or self.profile.context_tokens
        self.block_tokens = config.block_tokens or self.profile.block_tokens
        self.cache = PrefixCache(
            block_tokens=self.block_tokens,
            max_blocks=config.max_cache_blocks,
            ttl_s=TTL_S if self.profile.cache_expires else FOR_EVER_S,
        )
        self.invoice = Invoice(config.max_invoice_lines)
        self.seen = SeenLog(max_requests=config.max_requests, max_bytes=config.max_requests_bytes)
        self.requests: Counter[str] = Counter()
        """Requests to each path, from the start on."""
        self.running = 0
        """Chat requests that were admitted and have not ended."""
        self.faults = config.faults
        self._accounts: OrderedDict[str, Account] = OrderedDict()

    def reset(self) -> None:
        """As new: empty cache, invoice, log and limits, the clock as it was set. Request numbers go on."""
        self.clock.reset()
        self.cache.clear()
        self.invoice = Invoice(self.config.max_invoice_lines)
        self.seen.clear()
        self._accounts.clear()

    def organisation(self, key: str) -> str:
        """Whose cache and limits a key uses."""
        return self.config.organisations.get(key, f"key:{key}")

    def account(self, key: str) -> Account:
        """The limits' account of a key. At most so many are kept; the one used longest ago goes first."""
        name = self.organisation(key)
        account = self._accounts.setdefault(name, Account(self.config.limits))
        self._accounts.move_to_end(name)
        if len(self._accounts) > _MAX_ACCOUNTS:
            self._accounts.popitem(last=False)
        return account

    def ids(self, key: str) -> tuple[str, str]:
        """The account's and the key's id as the service's messages show them; digests, not the key."""
        organisation = hashlib.sha256(self.organisation(key).encode()).hexdigest()[:32]
        return f"org-{organisation}", f"ak-{hashlib.sha256(key.encode()).hexdigest()[:20]}"

    @property
    def spent_usd(self) -> Decimal:
        """The invoice's total, in exact dollars."""
        return Decimal(self.invoice.total_nano).scaleb(-_NANO_DIGITS)

    @property
    def balance(self) -> Decimal:
        """What was there at the start less the invoice, in exact dollars."""
        return Decimal(self.config.balance_usd) - self.spent_usd
