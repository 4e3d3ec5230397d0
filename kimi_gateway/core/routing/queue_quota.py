"""The limits of accounts: what the targets of one share, and the part of it that one of several processes has."""

from collections.abc import Iterable
from dataclasses import fields
from typing import Final

from kimi_gateway.core.routing.facts import Place, Quota

_LIMITS: Final = tuple(field.name for field in fields(Quota))


def smallest(quotas: Iterable[Quota]) -> Quota:
    """Of each limit the smallest that is one; none where all are 0."""
    listed = list(quotas)
    return Quota(
        **{
            name: min((limit for quota in listed if (limit := getattr(quota, name))), default=0)
            for name in _LIMITS
        }
    )


def share_of(quota: Quota, replicas: int) -> Quota:
    """What one of so many processes may use by itself: its part of each limit, at least 1."""
    return Quota(**{name: max(1, limit // replicas) if (limit := getattr(quota, name)) else 0 for name in _LIMITS})


class AccountQuotas:
    """The limits by account: of the targets that were declared, else of those that requests have named.

    A request that was made before a change does not undo it: what is declared counts.
    """

    __slots__ = ("_declared", "_learned", "_named")

    def __init__(self) -> None:
        self._declared: dict[str, Quota] = {}
        self._named: dict[str, Place] = {}  # by target
        self._learned: dict[str, Quota] = {}

    def declare(self, places: Iterable[Place]) -> None:
        """These are all targets there are; what was declared or named before is forgotten."""
        by_account: dict[str, list[Quota]] = {}
        for place in places:
            by_account.setdefault(place.account, []).append(place.quota)
        self._declared = {account: smallest(quotas) for account, quotas in by_account.items()}
        self._named.clear()
        self._learned.clear()

    def of(self, place: Place) -> Quota:
        """The limits of a place's account."""
        declared = self._declared.get(place.account)
        if declared is not None:
            return declared
        known = self._named.get(place.target)
        if known is not None and known.account == place.account and known.quota == place.quota:
            return self._learned[place.account]
        self._named[place.target] = place
        quotas = (one.quota for one in self._named.values() if one.account == place.account)
        quota = self._learned[place.account] = smallest(quotas)
        return quota

    def of_account(self, account: str) -> Quota | None:
        """The limits of an account; None where no target of it is known."""
        return self._declared.get(account) or self._learned.get(account)
