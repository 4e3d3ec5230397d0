"""What holds for every ranking, whatever the targets are."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from backends.faults import Fault, FaultKind
from kimi_gateway.core.routing.candidate import Abilities, Candidate, Pace, Policy, PolicyName, Tariff, Wants
from kimi_gateway.core.routing.explain import HEADER_BYTES_MAX, plan_header
from kimi_gateway.core.routing.facts import Load, Out, Quota
from kimi_gateway.core.routing.rank import Ranking, rank
from pricing.estimate import Estimate

few = settings(max_examples=60, deadline=None)
tokens = st.integers(0, 400_000)
paces = st.builds(Pace, st.floats(0, 5), st.floats(0, 0.001), st.floats(0, 0.1), st.floats(0, 100))
outs = st.builds(
    Out, st.builds(Fault, st.sampled_from(list(FaultKind)), st.just("x")), st.one_of(st.none(), st.floats(0, 200))
)
POLICIES: list[PolicyName] = ["cost", "order", "weights", "fastest", "least-busy"]


@st.composite
def tariffs(draw: st.DrawFn) -> Tariff:
    read = draw(st.integers(0, 4_000))
    return Tariff(read, read + draw(st.integers(0, 4_000)), draw(st.integers(0, 20_000)), "write_5m")


def candidates(**fixed: st.SearchStrategy[object]) -> st.SearchStrategy[Candidate]:
    parts: dict[str, st.SearchStrategy[object]] = {
        "name": st.just("t"),
        "account": st.sampled_from(["a", "b"]),
        "model": st.sampled_from(["", "m", "m"]),
        "window": st.sampled_from([32_768, 1_048_576]),
        "abilities": st.builds(Abilities, st.sampled_from([None, 1]), st.booleans(), st.booleans(), st.booleans()),
        "tariff": st.one_of(st.none(), tariffs()),
        "by_the_hour": st.booleans(),
        "weight": st.sampled_from([0.0, 1.0, 2.5]),
        "quota": st.builds(Quota, st.sampled_from([0, 4, 50])),
        "full": st.booleans(),
        "in_flight": st.integers(0, 60),
        "read_tokens": st.one_of(st.none(), tokens),
        "read_shared": st.booleans(),
        "load": st.one_of(st.none(), st.builds(Load, st.integers(0, 99), st.integers(0, 99), st.just(0.0))),
        "out": st.one_of(st.none(), st.none(), outs),
        "pace": st.one_of(st.none(), paces),
    }
    return st.builds(Candidate, **(parts | fixed))


def fleets(most: int = 6, **fixed: st.SearchStrategy[object]) -> st.SearchStrategy[list[Candidate]]:
    def named(made: list[Candidate]) -> list[Candidate]:
        return [replace(one, name=f"t{place}", place=place) for place, one in enumerate(made)]

    return st.lists(candidates(**fixed), min_size=1, max_size=most).map(named)


@st.composite
def replicas(draw: st.DrawFn, /, **fixed: st.SearchStrategy[object]) -> list[Candidate]:
    """Targets that are equal but for a little: there ranking is at its finest."""
    plain = {"model": st.just("m"), "weight": st.just(1.0), "load": st.none(), "full": st.just(False)}
    one = draw(candidates(**(plain | {"read_tokens": st.integers(0, 3_000)} | fixed)))
    little = st.tuples(st.integers(0, 6), st.integers(0, 6_000), st.integers(-20, 20))
    made = []
    for place in range(draw(st.integers(2, 5))):
        in_flight, more, dearer = draw(little)
        tariff = one.tariff and replace(one.tariff, output=max(0, one.tariff.output + dearer))
        reads = (one.read_tokens or 0) + more
        twin = replace(one, name=f"t{place}", place=place, in_flight=in_flight, tariff=tariff, read_tokens=reads)
        made.append(twin)
    return made


asked = st.builds(
    Wants,
    now_s=st.just(100.0),
    key=st.binary(min_size=1, max_size=16),
    prompt=tokens.map(lambda n: Estimate(n, n // 64, n * 4)),
    output_tokens=st.integers(1, 9_000),
    n=st.sampled_from([1, 1, 2]),
    thinking_off=st.sampled_from(["", "", "thinking"]),
    priced_only=st.booleans(),
    deadline_s=st.one_of(st.none(), st.floats(0.1, 100)),
)
policies = st.builds(
    Policy, st.sampled_from(POLICIES), st.sampled_from([0, 500_000_000, 10**11]), weighted=st.booleans()
)
by_cost = st.builds(Policy, st.just("cost"), st.sampled_from([0, 500_000_000, 10**11]))


def names(found: Ranking) -> list[str]:
    return [one.name for one in found.ranked]


@few
@given(asked, fleets(), policies)
def test_every_target_is_either_ranked_once_or_refused_once(
    wants: Wants, targets: list[Candidate], policy: Policy
) -> None:
    found = rank(wants, targets, policy)
    refused = [one.candidate.name for one in found.refused]
    assert sorted([*names(found), *refused]) == sorted(one.name for one in targets)
    assert all(one.candidate in targets for one in found.ranked)
    alone = {one.name: rank(wants, [one], policy) for one in targets}
    assert sorted(names(found)) == sorted(name for name, ranking in alone.items() if ranking.ranked)


@few
@given(asked, fleets(), policies, st.randoms(use_true_random=False))
def test_the_order_does_not_hang_on_how_the_snapshot_is_listed(
    wants: Wants, targets: list[Candidate], policy: Policy, dice: st.DataObject
) -> None:
    mixed = list(targets)
    dice.shuffle(mixed)  # type: ignore[attr-defined]  # it is a random.Random
    assert names(rank(wants, mixed, policy)) == names(rank(wants, targets, policy))


@few
@given(
    asked,
    st.one_of(fleets(tariff=tariffs(), out=st.none()), replicas(tariff=tariffs(), out=st.none())),
    by_cost,
    st.data(),
)
def test_a_target_whose_price_rises_never_moves_up(
    wants: Wants, targets: list[Candidate], policy: Policy, data: st.DataObject
) -> None:
    one = data.draw(st.sampled_from(targets))
    tariff = one.tariff or Tariff(0, 0, 0)
    more = data.draw(st.one_of(st.integers(0, 30), st.integers(0, 3_000)))
    by = data.draw(st.sampled_from(["output", "fresh", "all"]))
    dearer = {
        "output": replace(tariff, output=tariff.output + more),
        "fresh": replace(tariff, fresh=tariff.fresh + more),
        "all": Tariff(tariff.read + more, tariff.fresh + more, tariff.output + more),
    }[by]
    changed = [replace(it, tariff=dearer) if it is one else it for it in targets]
    before, after = names(rank(wants, targets, policy)), names(rank(wants, changed, policy))
    if one.name in before:
        assert after.index(one.name) >= before.index(one.name)


@few
@given(asked, st.one_of(fleets(out=st.none()), replicas(out=st.none())), st.one_of(by_cost, policies), st.data())
def test_a_target_with_more_warm_tokens_never_moves_down(
    wants: Wants, targets: list[Candidate], policy: Policy, data: st.DataObject
) -> None:
    one = data.draw(st.sampled_from(targets))
    more = data.draw(st.one_of(st.integers(0, 5_000), st.integers(0, 300_000)))
    warmer = replace(one, read_tokens=(one.read_tokens or 0) + more)
    changed = [warmer if it is one else it for it in targets]
    before, after = names(rank(wants, targets, policy)), names(rank(wants, changed, policy))
    if one.name in before:
        assert after.index(one.name) <= before.index(one.name)


@few
@given(
    st.binary(max_size=80),
    st.lists(st.text(min_size=1, max_size=9), unique=True, min_size=2, max_size=8),
    st.sampled_from(POLICIES),
    st.data(),
)
def test_only_the_conversations_of_a_target_that_goes_move(
    key: bytes, targets: list[str], policy: PolicyName, data: st.DataObject
) -> None:
    weight = st.sampled_from([0.5, 1.0, 3.0])
    fleet = [Candidate(name, "a", "m", n, weight=data.draw(weight)) for n, name in enumerate(targets)]
    gone = data.draw(st.sampled_from(targets))
    wants, chosen = Wants(key=key), Policy(policy, weighted=data.draw(st.booleans()))
    rest = names(rank(wants, [one for one in fleet if one.name != gone], chosen))
    assert rest == [name for name in names(rank(wants, fleet, chosen)) if name != gone]


@few
@given(asked, fleets(4, out=st.none(), full=st.just(True)), by_cost)
def test_the_first_choice_is_never_held_back_and_no_other_longer_than_it_is_slower_and_allowed(
    wants: Wants, targets: list[Candidate], policy: Policy
) -> None:
    found = rank(wants, targets, policy).ranked
    if found:
        assert found[0].not_before_s == 0
        assert all(one.not_before_s <= 100.0 + one.wait_s + policy.hold_max_s + 1e-9 for one in found)  # rounding


@few
@given(asked, st.lists(candidates(), min_size=2, max_size=4), policies, st.text(max_size=300))
def test_a_plan_of_fifty_targets_is_a_header_of_four_kilobytes(
    wants: Wants, targets: list[Candidate], policy: Policy, word: str
) -> None:
    fleet = [replace(targets[n % len(targets)], name=f"{word}{n}", place=n) for n in range(50)]
    found = rank(wants, fleet, policy)
    header = plan_header(found, wants, policy, model=word, tier="standard")
    assert len(header) <= HEADER_BYTES_MAX
    assert header.isascii()
    assert header.isprintable()
    assert header == plan_header(found, wants, policy, model=word, tier="standard")
