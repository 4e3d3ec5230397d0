"""Where a request goes: eligible targets, first choice first, each with its reasons; and why the others do not.

| policy | first is |
|---|---|
| cost | the least score: money + predicted wait x the price of waiting |
| order | the first as the route is written |
| weights | the one that a split by weight gives the conversation |
| fastest | the one whose whole answer is expected soonest, by its measured pace |
| least-busy | the one with the fewest requests (by weight, where the route states weights) |

What the policy finds equal is shared out by rendezvous hashing on the conversation, crowded targets last. Behind
all others go, under every policy and in this order: targets that are expected to miss the deadline, targets into
whose window the prompt likely does not fit, targets of weight 0. Under `cost` the targets of a seller whose price
is not known go before those and behind the rest: unknown is not free.

Warm caches draw conversations only so far. What other conversations have left in a cache counts only while the
target is not crowded; what the conversation itself has there always counts. So a fleet with one system prompt
fills one target after the other, and a running conversation stays where it is. A target with a limit is crowded
early: who comes where he has nothing takes a place from those who have, and for one of them to move is dear.

Where the first choice takes nothing at once, those behind it are held back for as long as waiting for it is the
cheaper choice: their `not_before_s` says until when. That keeps conversations on their caches when all targets are
full, which is when moving them costs most.

Pure. Takes 1.5 us for one target, 13 us for four and 22 us for four equal ones with a queue of their own (CPU time
of CPython 3.11).
"""

from collections.abc import Callable, Sequence
from math import inf
from operator import itemgetter
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from kimi_gateway.core.routing.candidate import Candidate, Policy, Wants
from kimi_gateway.core.routing.facts import Place
from kimi_gateway.core.routing.filters import FILTERS, Refusal, is_doubtful, is_near, refusal
from kimi_gateway.core.routing.rendezvous import lot, pull
from kimi_gateway.core.routing.score import (
    ASSUMED_PACE,
    busy,
    cooling_s,
    money_nano,
    prefill_s,
    queue_s,
    total_s,
    wait_nano,
    warm_tokens,
)

_EQUAL_PART: Final = 100
_EQUAL_S: Final = 0.5
"""Scores are equal within a hundredth of the best and half a second of waiting: less is noise."""
_SOON_S: Final = 0.2
"""Of targets whose score is equal those go first whose first token comes as soon, give or take this."""
_FAST_PART: Final = 20
_FAST_S: Final = 0.05
_COARSE_TOKENS: Final = 1024
"""Among equals the warmer goes first, by so many tokens: they cost nothing where machines are paid by the hour."""
_HOME_PART: Final = 4
"""A conversation of which a target has this part in its cache is at home there, however crowded it is."""
_DISPLACED_TOKENS: Final = 16_384
"""Half the prompt of a usual agent: every second newcomer at a crowded target has somebody move who is at home."""
_BUSY_PART: Final = 0.4
"""An agent's conversation is busy so much of its time. Where so much of a limit is in use, about as many
conversations are at home as there are places, and with more of them some find it full."""
_HOUR_S: Final = 3600


class Ranked(Struct, frozen=True, gc=False):
    """An eligible target. `money_nano` is the expected money (None: no price), `wait_s` the predicted time to the
    first token, `score_nano` both together. Where it is `crowded`, its score has what that counts for, and leaves
    out what others have left in its cache. It is not to be used before `not_before_s` (0: now)."""

    candidate: Candidate
    money_nano: int | None
    wait_s: float
    score_nano: int
    crowded: bool = False
    last: str = ""  # why it is behind all others
    not_before_s: float = 0.0

    @property
    def name(self) -> str:
        """The target's."""
        return self.candidate.name

    @property
    def place(self) -> Place:
        """The place to ask the queue for."""
        candidate = self.candidate
        return Place(candidate.name, candidate.account, candidate.quota, self.not_before_s)


class Ranking(Struct, frozen=True, gc=False):
    """The eligible targets in order, and the others in the route's. `needs_exact`: an exact count of the prompt
    may change who is eligible or first; rank again with it."""

    ranked: tuple[Ranked, ...]
    refused: tuple[Refusal, ...] = ()
    needs_exact: bool = False

    @property
    def decisive(self) -> Refusal | None:
        """The refusal that a request without an eligible target is answered by: of the one that came furthest.
        None where one is eligible, or where there is no target at all."""
        if self.ranked or not self.refused:
            return None
        return max(self.refused, key=lambda one: FILTERS.index(one.filter))

    @property
    def out(self) -> tuple[Refusal, ...]:
        """Those that could serve the request, were they not out."""
        return tuple(one for one in self.refused if one.filter == "out")


def rank(asked: Wants, targets: Sequence[Candidate], policy: Policy) -> Ranking:
    """The ranking of a route's targets for one request. Same input, same order, in every process."""
    if len(targets) == 1:
        return _alone(asked, targets[0], policy)
    eligible, refused = [], []
    for target in targets:
        reason = refusal(asked, target, policy)
        if reason is None:
            eligible.append(target)
        else:
            refused.append(reason)
    if len(eligible) > 1:
        crowds = _crowds(eligible, policy)
        moved_nano = _moved_nano(eligible) if True in crowds else 0
        ranked = [
            _ranked(asked, one, policy, crowd, moved_nano) for one, crowd in zip(eligible, crowds, strict=True)
        ]
        ranked = _held(asked, _ORDERS[policy.name](asked, ranked, policy), policy)
    else:
        ranked = [_ranked(asked, target, policy, False) for target in eligible]
    return Ranking(tuple(ranked), tuple(refused), len(eligible) > 1 and _is_open(asked, eligible))


def _alone(asked: Wants, target: Candidate, policy: Policy) -> Ranking:
    """The ranking of one target: there is nothing to compare."""
    reason = refusal(asked, target, policy)
    if reason is not None:
        return Ranking((), (reason,))
    return Ranking((_ranked(asked, target, policy, False),))


def _is_open(asked: Wants, eligible: Sequence[Candidate]) -> bool:
    """Whether the prompt fits is open for a target, and there is one with a larger window."""
    high = asked.prompt.high
    for one in eligible:
        if high >= one.window and is_near(asked, one) and any(other.window > one.window for other in eligible):
            return True
    return False


# --- one target -------------------------------------------------------------------------------------------------


def _crowds(eligible: Sequence[Candidate], policy: Policy) -> list[bool]:
    """Which targets are crowded: more is in flight there than a multiple of its share, which goes by the limits
    where all have one. Where only some have, those are crowded too once their own conversations need the rest."""
    loads = [one.in_flight if one.load is None else busy(one) for one in eligible]
    limits = [one.quota.concurrency for one in eligible]
    bound = policy.load_bound * (1 + sum(loads))
    floor = policy.load_floor
    if 0 in limits:
        most = max(floor, bound / len(eligible))
        tops = [min(most, max(floor, _BUSY_PART * limit)) if limit else most for limit in limits]
        return [load + 1 > top for load, top in zip(loads, tops, strict=True)]
    scale = max(_BUSY_PART, bound / sum(limits))
    return [load + 1 > floor and load + 1 > scale * limit for load, limit in zip(loads, limits, strict=True)]


def _moved_nano(eligible: Sequence[Candidate]) -> int:
    """What it costs that somebody may have to move from his cache to the dearest of these."""
    dearest = max([one.tariff.fresh - one.tariff.read for one in eligible if one.tariff is not None], default=0)
    return _DISPLACED_TOKENS * max(0, dearest)


def _ranked(asked: Wants, target: Candidate, policy: Policy, crowded: bool, moved_nano: int = 0) -> Ranked:
    """The target with its figures. Written out, because it is most of what ranking takes."""
    prompt, pace, tariff = asked.prompt.tokens, target.pace or ASSUMED_PACE, target.tariff
    warm = min(target.read_tokens or 0, prompt)
    wait_s = pace.first_s + (prompt - warm) * pace.fresh_s
    if target.full or target.out is not None or (target.load is not None and target.load.waiting):
        wait_s += queue_s(asked, target)
    money = money_nano(asked, target, warm) if tariff is not None else 0
    score = money + int(wait_s * policy.wait_nano_per_hour / _HOUR_S)
    if crowded:
        crowded = target.read_shared or warm * _HOME_PART < prompt
        score = _crowded_score(asked, target, policy, wait_s, moved_nano) if crowded else score
    last = ""
    if target.weight <= 0 or tariff is None or asked.prompt.high >= target.window or asked.deadline_s is not None:
        last = _last(asked, target, policy, wait_s)
    cooling = target.out is not None and cooling_s(asked, target) > 0
    not_before_s = (target.out.until_s or 0.0) if cooling and target.out is not None else 0.0
    return Ranked(target, money if tariff is not None else None, wait_s, score, crowded, last, not_before_s)


def _crowded_score(asked: Wants, target: Candidate, policy: Policy, wait_s: float, moved_nano: int) -> int:
    """The score of a crowded target: a wait more, and without what other conversations have left in its cache.

    Where it has a limit, whoever comes takes a place from those who are at home there. One of them may find it
    full then and has to be read anew elsewhere.
    """
    warm = warm_tokens(asked, target)
    if target.read_shared:
        wait_s += prefill_s(target, asked.prompt.tokens) - prefill_s(target, asked.prompt.tokens - warm)
        warm = 0
    displaced_nano = moved_nano if target.quota.concurrency else 0
    return money_nano(asked, target, warm) + wait_nano(wait_s + policy.crowd_s, policy) + displaced_nano


def _last(asked: Wants, target: Candidate, policy: Policy, wait_s: float) -> str:
    """Why a target goes behind all others, "" where it does not."""
    if target.weight <= 0:
        return "weight 0"
    if asked.prompt.high >= target.window and is_doubtful(asked, target):
        return "the prompt likely does not fit"
    if policy.name == "cost" and target.tariff is None and not target.by_the_hour:
        return "price not known"
    if asked.deadline_s is not None and target.pace is not None:
        return "misses the deadline" if total_s(asked, target, wait_s) > asked.deadline_s else ""
    return ""


# --- policies ---------------------------------------------------------------------------------------------------

_BEHIND: Final = {
    "": 0,
    "price not known": 1,
    "misses the deadline": 2,
    "the prompt likely does not fit": 3,
    "weight 0": 4,
}


def _by_cost(asked: Wants, ranked: list[Ranked], policy: Policy) -> list[Ranked]:
    """By score. Equal scores: those that are not crowded, the warmer, then the conversation's own order."""
    keyed = sorted(
        [(_BEHIND[one.last], one.score_nano, one.candidate.place, one) for one in ranked], key=itemgetter(0, 1, 2)
    )
    behind, best, _, _ = keyed[0]
    limit = best + best // _EQUAL_PART + wait_nano(_EQUAL_S, policy)
    equal = 1
    while equal < len(keyed) and keyed[equal][0] == behind and keyed[equal][1] <= limit:
        equal += 1
    order = [entry[3] for entry in keyed]
    if equal == 1:
        return order
    return [*_shared_out(asked, order[:equal], policy, by_warmth=True), *order[equal:]]


def _by_order(asked: Wants, ranked: list[Ranked], policy: Policy) -> list[Ranked]:
    return sorted(ranked, key=lambda one: (_BEHIND[one.last], one.candidate.place))


def _by_weight(asked: Wants, ranked: list[Ranked], policy: Policy) -> list[Ranked]:
    pulls = {one.name: pull(asked.key, one.name, one.candidate.weight) for one in ranked}
    return sorted(ranked, key=lambda one: (_BEHIND[one.last], -pulls[one.name], one.candidate.place))


def _by_speed(asked: Wants, ranked: list[Ranked], policy: Policy) -> list[Ranked]:
    """By the predicted time to the answer's end. A target that nobody has measured counts as fast as the fastest,
    so that it gets its share of requests and is measured."""
    known = {one.name: total_s(asked, one.candidate, one.wait_s) for one in ranked if one.candidate.pace}
    best = min(known.values(), default=0.0)
    limit_s = best + best / _FAST_PART + _FAST_S
    order = sorted(ranked, key=lambda one: (_BEHIND[one.last], known.get(one.name, best), one.candidate.place))
    equal = [one for one in order if one.last == order[0].last and known.get(one.name, best) <= limit_s]
    return [*_shared_out(asked, equal, policy, by_warmth=False), *order[len(equal) :]]


def _by_load(asked: Wants, ranked: list[Ranked], policy: Policy) -> list[Ranked]:
    keyed = []
    for one in ranked:
        candidate = one.candidate
        load = busy(candidate) / (candidate.weight or 1.0)
        keyed.append((-_BEHIND[one.last], -load, _strength(asked, candidate, policy), -candidate.place, one))
    return _descending(keyed)


def _strength(asked: Wants, candidate: Candidate, policy: Policy) -> float | bytes:
    """How strongly an equal target pulls the conversation; of one type for all targets of a route."""
    if policy.weighted:
        return pull(asked.key, candidate.name, candidate.weight)
    return lot(asked.key, candidate.name)


def _descending(keyed: list[Any]) -> list[Ranked]:
    keyed.sort(key=itemgetter(0, 1, 2, 3), reverse=True)
    return [entry[4] for entry in keyed]


def _shared_out(asked: Wants, equal: list[Ranked], policy: Policy, *, by_warmth: bool) -> list[Ranked]:
    """Equal targets in the conversation's own order, crowded ones last; by warmth also the warmer first, then
    those whose first token comes soonest."""
    keyed = []
    soon_s = min(one.wait_s for one in equal) + _SOON_S if by_warmth else inf
    for one in equal:
        candidate = one.candidate
        counts = by_warmth and not (one.crowded and candidate.read_shared)
        blocks = (candidate.read_tokens or 0) // _COARSE_TOKENS if counts else 0
        begins_soon = candidate.pace is None or one.wait_s <= soon_s  # nobody measured: it gets its chance
        warmth = blocks + blocks + begins_soon  # who begins soon is before who is no warmer
        keyed.append((not one.crowded, warmth, _strength(asked, candidate, policy), -candidate.place, one))
    return _descending(keyed)


_Order = Callable[[Wants, list[Ranked], Policy], list[Ranked]]
_ORDERS: Final[dict[str, _Order]] = {
    "cost": _by_cost,
    "order": _by_order,
    "weights": _by_weight,
    "fastest": _by_speed,
    "least-busy": _by_load,
}


# --- waiting for the better place -------------------------------------------------------------------------------


def _held(asked: Wants, order: list[Ranked], policy: Policy) -> list[Ranked]:
    """The same with those behind a first choice that is full or cools down held back while that is worth more.

    Where all are full each frees a place in its turn, so waiting for one's own takes no longer than for any; only
    what it takes longer has to be worth it. Not where it is expected to take longer than is worth waiting: then
    waiting first and going elsewhere after would cost both.
    """
    first = order[0]
    if policy.name != "cost" or not (first.candidate.full or first.not_before_s):
        return order
    waits_s = queue_s(asked, first.candidate)
    held = [first]
    for one in order[1:]:
        there_s = queue_s(asked, one.candidate)
        patience_s = _patience_s(first, one, waits_s, there_s, policy)
        if waits_s - there_s <= patience_s:
            until_s = max(one.not_before_s, asked.now_s + there_s + patience_s)
            one = replace(one, not_before_s=until_s)
        held.append(one)
    return held


def _patience_s(first: Ranked, other: Ranked, waits_s: float, there_s: float, policy: Policy) -> float:
    """How much longer than for the other one may wait for the first: until that has cost as much as the other does
    more; at most what the other needs longer to its first token once it has begun, so that nobody's first token
    comes later, and `hold_max_s` besides where the other is full as well."""
    slower_s = (other.wait_s - there_s) - (first.wait_s - waits_s)
    most_s = max(0.0, slower_s) + (policy.hold_max_s if there_s else 0.0)
    if not policy.wait_nano_per_hour:
        return most_s
    more_nano = other.score_nano - first.score_nano + wait_nano(waits_s, policy) - wait_nano(there_s, policy)
    return min(most_s, max(0.0, more_nano * _HOUR_S / policy.wait_nano_per_hour))
