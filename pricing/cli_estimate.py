"""`kimi-pricing estimate`: what requests will cost, before they are sent.

Exit codes: 0 all estimated, 1 a line that is no request or none at all, 2 wrong use.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Final

import typer

from pricing.advice.forecast import EFFORTS, Forecast, RequestError, forecast, read_wish
from pricing.advice.forecast_sums import ForecastSums
from pricing.advice.offers import TTLS, Offer, StatedTarget, card_offers, chosen, target_offers
from pricing.cards import load_cards
from pricing.cli_common import Config, Misuse, Output, complaints, given_places, names, now, progress
from pricing.cli_settings import Given
from pricing.cli_targets import read_targets
from pricing.estimate_view import Estimates, print_estimates_csv, print_estimates_json, print_estimates_table
from pricing.rates import TIERS, CardBook, unknown_name
from pricing.render import Format, complain
from pricing.request_lines import RequestLine, read_requests
from pricing.tokens import TokenCounter
from pricing.vocabulary import find_vocabulary

_BAD_LINES: Final = 1
_STDIN: Final = "<stdin>"

_EXAMPLES: Final = """Examples:

\b
  kimi-pricing estimate request.json
  kimi-pricing estimate request.json --output-tokens 2000 --ttl 1h
  kimi-pricing estimate requests.jsonl --effort low,max --format csv
  kimi-pricing estimate request.json --tier highspeed --format json
  kimi-pricing estimate request.json --seller openrouter
  cat request.json | kimi-pricing estimate -"""


def add_estimate(app: typer.Typer) -> None:
    """Gives the program this command."""
    app.command("estimate", epilog=_EXAMPLES)(estimate)


def estimate(
    ctx: typer.Context,
    file: Annotated[
        typer.FileBinaryRead,
        typer.Argument(
            help="A chat request as JSON, or one a line (JSONL); - reads standard input.", metavar="FILE"
        ),
    ],
    model: Annotated[str, typer.Option(help="The model, instead of the one that each request names.")] = "",
    tier: Annotated[str, typer.Option(help="Only these tiers: standard,highspeed.")] = "",
    ttl: Annotated[str, typer.Option(help="Only these lifetimes of cache writes: 5m,1h.")] = "",
    effort: Annotated[str, typer.Option(help="At these efforts instead of the request's: low,high,max.")] = "",
    seller: Annotated[str, typer.Option(help="Only the cards of these sellers: moonshot,openrouter.")] = "",
    target: Annotated[str, typer.Option(help="Only these targets of the configuration, by name.")] = "",
    output_tokens: Annotated[
        int | None, typer.Option(help="Assume answers of so many tokens, thinking included.", min=1)
    ] = None,
    output: Output = Format.table,
    config: Config = None,
) -> None:
    """What requests will cost, per tier, effort, lifetime of the cache and seller.

    The prompt is counted with Kimi's vocabulary where it is there (`kimi-pricing tokenizer fetch`), else bounded
    from its size. The output is between nothing and its limit. Media are not counted, and said not to be.
    """
    with complaints():
        given, places = given_places(ctx, Given(config))
        options = _Options(
            model=model,
            tiers=names(tier, "--tier", TIERS),
            ttls=names(ttl, "--ttl", TTLS),
            efforts=names(effort, "--effort", EFFORTS),
            sellers=names(seller, "--seller"),
            output_tokens=output_tokens,
        )
        targets = _chosen_targets(read_targets(given.config), names(target, "--target"))
        market = _Market(load_cards(places.cards_dir), targets, only_targets=bool(target), day=now().date())
        _refuse_unknown_sellers(options.sellers, market.book)
        counter = find_vocabulary(os.environ)  # noqa: TID251  # a command's own reading of it
    with progress("estimating", _size(file)) as done:
        found = _estimated(file, options, market, counter, keep=output is not Format.table, done=done)
    _print(found, output)
    if found.problems or not found.sums.requests:
        raise typer.Exit(_BAD_LINES)


def _print(found: Estimates, output: Format) -> None:
    match output:
        case Format.json:
            print_estimates_json(found)
        case Format.csv:
            print_estimates_csv(found)
            for number, problem in found.problems:
                complain(f"{found.source}, line {number}: {problem}")
        case Format.table:
            print_estimates_table(found)
    if not found.sums.requests and not found.problems:
        complain(f"{found.source}: no request in it; write one as a JSON object, or one a line")


@dataclass(frozen=True, slots=True)
class _Options:
    model: str
    tiers: Sequence[str]
    ttls: Sequence[str]
    efforts: Sequence[str]
    sellers: Sequence[str]
    output_tokens: int | None


class _Market:
    """The offers for each model, looked up once."""

    def __init__(self, book: CardBook, targets: Sequence[StatedTarget], *, only_targets: bool, day: date) -> None:
        self.book: Final = book
        self.day: Final = day
        self._targets: Final = targets
        self._only_targets: Final = only_targets
        self._found: dict[str, list[Offer]] = {}

    def offers(self, family: str) -> list[Offer]:
        """The cards of all sellers and the targets with prices of their own; or what was chosen of the targets."""
        if family not in self._found:
            cards = [] if self._only_targets else card_offers(self.book, family, self.day)
            of_targets = [
                offer
                for target in self._targets
                if self._only_targets or target.prices is not None
                for offer in target_offers(target, self.book, family, self.day)
            ]
            self._found[family] = list(dict.fromkeys([*cards, *of_targets]))
        return self._found[family]


def _estimated(
    file: typer.FileBinaryRead,
    options: _Options,
    market: _Market,
    counter: TokenCounter | None,
    *,
    keep: bool,
    done: Callable[[int], None],
) -> Estimates:
    sums, forecasts, problems = ForecastSums(), list[tuple[int, Forecast]](), list[tuple[int, str]]()
    errors: list[str] = []
    for line in read_requests(file):
        try:
            found = _of_line(line, options, market, counter)
        except RequestError as err:
            problems.append((line.number, str(err)))
            continue
        sums.add(found, by_effort=bool(options.efforts))
        done(line.end_byte)
        if keep:
            forecasts += ((line.number, one) for one in found)
        # What the counting says of itself holds for one request.
        errors = found[0].prompt.error.split("; ") if sums.requests == 1 else []
    name = str(getattr(file, "name", _STDIN))
    source = "standard input" if name in (_STDIN, "-") else name
    method = "estimate" if counter is None else "vocabulary"
    return Estimates(source, market.day, method, options.output_tokens, sums, forecasts, problems, errors)


def _of_line(
    line: RequestLine, options: _Options, market: _Market, counter: TokenCounter | None
) -> list[Forecast]:
    """The forecasts of one line, one per effort. Raises `RequestError`."""
    if line.request is None:
        raise RequestError(line.problem)
    wish = read_wish(line.request, options.model)
    offers = market.offers(wish.model)
    if not offers:
        raise RequestError(
            f"nobody's price is known for the model {wish.model!r}; name another with --model, "
            "or see `kimi-pricing rates`"
        )
    picked = chosen(offers, tiers=options.tiers, ttls=options.ttls, sellers=options.sellers)
    if not picked:
        raise RequestError(f"no offer for {wish.model!r} fits --tier, --ttl and --seller")
    return forecast(
        line.request,
        wish,
        picked,
        efforts=options.efforts,
        output_tokens=options.output_tokens,
        counter=counter,
    )


def _chosen_targets(targets: Sequence[StatedTarget], wanted: Sequence[str]) -> list[StatedTarget]:
    known = {target.name: target for target in targets}
    for name in wanted:
        if name not in known:
            hint = (
                unknown_name(name, known)
                if known
                else "the configuration has no [[targets]]; name it with --config"
            )
            raise Misuse(f"--target: {hint}")
    return [known[name] for name in wanted] if wanted else list(targets)


def _refuse_unknown_sellers(sellers: Sequence[str], book: CardBook) -> None:
    known = sorted({card.seller for card in book.cards})
    for seller in sellers:
        if seller not in known:
            raise Misuse(f"--seller: {unknown_name(seller, known)}")


def _size(file: typer.FileBinaryRead) -> int | None:
    """The bytes of a file, None of what has no size."""
    try:
        return os.fstat(file.fileno()).st_size or None
    except OSError:  # a stream that is no file
        return None
