"""README, ARCHITECTURE and CHANGELOG name what the code has, and nothing that it has not.

Each check is a function from a page's text to its complaints. The last test takes from the page what a check looks
for, one word at a time, and wants a complaint: a check that cannot fail would be found out.
"""

import re
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any, get_args

import pytest

import kimi_sdk
from backends.catalog import DIALECTS
from backends.emulator.fault_file import SERVICE_KEYS, read_fault_file
from backends.emulator.fault_options import Option
from backends.emulator.faults import CONDITIONS, KINDS
from backends.faults import FaultKind
from kimi_gateway import __version__
from kimi_gateway.settings import Settings, load
from kimi_gateway.settings.load import SECTIONS
from kimi_gateway.settings.unbuilt import UNBUILT
from pricing.cards import load_cards
from pricing.ledger.row import STATUSES, CostSource, LedgerRow
from pricing.ledger.shown import shown
from pricing.ledger.store.report import DIMENSIONS
from pricing.rates_view import card_object
from pricing.usage import METERS
from support import facts
from support.pages import (
    ROOT,
    anchor_of,
    anchors,
    blocks,
    code_words,
    first_cells,
    headings,
    page,
    rows,
    section,
    without_blocks,
)

README = page("README.md")
ARCHITECTURE = page("ARCHITECTURE.md")
CHANGELOG = page("CHANGELOG.md")
PRICED_ON = date(2026, 11, 30)
SECRETS = {"MOONSHOT_API_KEY": "sk-docs", "OPENROUTER_API_KEY": "sk-docs", "TEAM_A_KEY": "kg-docs"}
_MARKS = {None: "–", "official": "", "second-hand": " *", "unverified": " ?"}


def differences(where: str, written: set[str], real: set[str]) -> list[str]:
    """A complaint for each name that is missing in a place, and for each that stands there for nothing."""
    missing = [f"{where}: {name} is not documented" for name in sorted(real - written)]
    return missing + [
        f"{where}: {name} is documented, but there is no such thing" for name in sorted(written - real)
    ]


def absences(where: str, words: set[str], wanted: set[str]) -> list[str]:
    """A complaint for each name that stands nowhere as inline code."""
    return [f"{where}: {name} is not documented" for name in sorted(wanted - words)]


def named_options(text: str) -> set[str]:
    """Options and arguments in the first column of a command's table."""
    return {re.split(r"[ =]", word)[0] for word in first_cells(text)}


def command_complaints(readme: str) -> list[str]:
    """Every command has a heading of its own, with exactly its options in a table."""
    found = []
    for command, given in facts.commands().items():
        text = section(readme, f"`{command}`")
        found += [] if text else [f"{command} has no heading of its own"]
        found += differences(command, named_options(text), given)
    programs = {title.strip("`") for title in headings(readme) if re.match(r"`kimi-(?:gateway|pricing)\b", title)}
    return found + differences("headings", programs, set(facts.commands()))


def setting_complaints(readme: str) -> list[str]:
    """The block of defaults has every setting; alternatives stand there as comments."""
    text = defaults_block(readme)
    written = {f"{table}.{name}" for table, values in _tables(tomllib.loads(text)) for name in values}
    current = ""
    for line in text.splitlines():
        if found := re.match(r"\[+(\w+)\]+", line):
            current = found[1]
        elif found := re.match(r"# (\w+) = ", line):
            written.add(f"{current}.{found[1]}")
    return differences("[settings]", written, facts.settings())


def _tables(document: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, value in document.items():
        for table in value if isinstance(value, list) else [value]:
            yield name, table


def defaults_block(readme: str) -> str:
    """The one TOML block that holds the defaults."""
    (found,) = (block for block in blocks(readme) if block.info == "toml defaults")
    return found.text


def variable_complaints(readme: str) -> list[str]:
    """Every variable that the code reads is named."""
    return absences("variables", code_words(section(readme, "Configuration")), facts.variables())


def header_complaints(readme: str) -> list[str]:
    """Every header of ours is explained in a table; what is listed as not built is not read anywhere."""
    tables = first_cells(section(readme, "Request headers")) | first_cells(section(readme, "Response headers"))
    ours = {name for name in tables if name.startswith("x-kimi-")}
    found = differences("headers", ours, facts.our_headers())
    announced = {word for word in code_words(section(readme, "Not built yet")) if word.startswith("x-")}
    found += [f"{name} is built, but listed as not built" for name in sorted(announced & facts.our_headers())]
    return found + absences("headers", {word.lower() for word in code_words(readme)}, shown_headers())


def shown_headers() -> set[str]:
    """The other headers a client may meet; those that only upstreams send are no matter of theirs."""
    upstream_only = {"x-trace-id", "x-generation-id"}
    return facts.gateway_headers() - upstream_only


def error_complaints(readme: str) -> list[str]:
    """The table of errors has every code and type of the source and no other."""
    table = [cells for cells in rows(section(readme, "Errors")) if len(cells) == 6]
    types = {word for cells in table for word in code_words(cells[1])}
    codes = {word for cells in table for word in code_words(cells[2])}
    return differences("error types", types, facts.error_types()) + differences(
        "error codes", codes, facts.error_codes()
    )


def metric_complaints(readme: str) -> list[str]:
    """The table of metrics has every metric and no other."""
    return differences("metrics", first_cells(section(readme, "Metrics and logs")), facts.metric_names())


def path_complaints(readme: str) -> list[str]:
    """The table of paths has every path and no other; what is listed as not built answers nothing."""
    written = {word.split(" ")[-1] for word in first_cells(section(readme, "Requests")) if " /" in word}
    announced = {word for word in code_words(section(readme, "Not built yet")) if word.startswith("/")}
    found = [f"{path} is built, but listed as not built" for path in sorted(announced & facts.paths())]
    return differences("paths", written, facts.paths()) + found


def unbuilt_complaints(readme: str) -> list[str]:
    """The list of what is not built has exactly the settings that are refused, and no command that there is."""
    text = section(readme, "Not built yet")
    dotted = {word for word in code_words(text) if re.fullmatch(r"[a-z]+\.[a-z_]+", word)}
    commands = {word for word in code_words(text) if word.startswith("kimi-")}
    found = [f"{name} is built, but listed as not built" for name in sorted(commands & set(facts.commands()))]
    return differences("not built", dotted, set(UNBUILT)) + found


def money_complaints(readme: str) -> list[str]:
    """Meters, row names, statuses, cost sources and dimensions of reports are named; prices are those shipped."""
    text = section(readme, "Money")
    row = set(shown(LedgerRow(request_id="kr_", started_at=0.0)))
    wanted = {*METERS, *row, *STATUSES, *get_args(CostSource)}
    found = absences("money", code_words(text), wanted)
    found += absences("report", code_words(section(readme, "`kimi-pricing report`")), set(DIMENSIONS))
    return found + differences("prices", priced_lines(text), set(real_prices()))


def priced_lines(text: str) -> set[str]:
    """The lines of the table of prices."""
    return {" | ".join(cells) for cells in rows(section(text, "Prices")) if cells[0].startswith("`")}


def real_prices() -> Iterator[str]:
    """The same lines from the shipped cards of the model this product is for."""
    for card in load_cards().in_force(PRICED_ON):
        if "k3.1" not in card.model:
            continue
        prices: Any = card_object(card)["rates"]
        shown_prices = [f"{prices[meter] or ''}{_MARKS[card.confidence(meter)]}" for meter in _price_columns()]
        yield " | ".join([f"`{card.model}`", card.seller, *shown_prices])


def _price_columns() -> tuple[Any, ...]:
    return ("input", "cache_read", "write_5m", "write_1h", "output", "search")


def fault_complaints(readme: str) -> list[str]:
    """Every kind of fault says what follows it; every dialect is named among the upstreams."""
    kinds = {str(kind) for kind in FaultKind}
    found = differences("faults", first_cells(section(readme, "When an upstream fails")), kinds)
    named = {
        table["dialect"]
        for block in config_blocks(readme)
        for _, table in _tables(tomllib.loads(block))
        if "dialect" in table
    }
    return found + differences("dialects", named, set(DIALECTS))


def sdk_complaints(readme: str) -> list[str]:
    """The client's public names, the arguments of `Chat` and the parts of a `Reply` are named."""
    text = section(readme, "The Python client")
    tree = "".join(block.text for block in blocks(readme) if block.text.startswith("KimiError"))
    words = code_words(text) | set(re.findall(r"^ *(\w+)", tree, re.MULTILINE))
    arguments = set(kimi_sdk.Chat.__init__.__annotations__) - {"return"}
    reply = {item.name for item in fields(kimi_sdk.Reply)}
    return absences("kimi_sdk", words, {*kimi_sdk.__all__, *arguments, *reply})


def emulator_complaints(readme: str) -> list[str]:
    """The table of faults has every kind with exactly its options and their defaults; the example has the rest."""
    table = {cells[0].strip("`"): cells for cells in rows(section(readme, "Faults on demand")) if len(cells) == 3}
    found = differences("emulator faults", set(table) - {"kind"}, set(KINDS))
    for kind in set(table) & set(KINDS):
        found += differences(
            kind, _options(table[kind][2]), {option_text(*item) for item in KINDS[kind].options.items()}
        )
    words = code_words(section(readme, "Faults on demand"))
    (example,) = (tomllib.loads(block.text) for block in blocks(readme) if block.info == "toml faults")
    written = {*words, *example["limits"], *example["faults"][0]}
    return found + absences("fault file", written, {*SERVICE_KEYS, *CONDITIONS, "tier"} - {"every", "probability"})


def _options(cell: str) -> set[str]:
    return {word for word in code_words(cell) if re.match(r"[a-z_]+ = |done$", word)}


def option_text(name: str, option: Option) -> str:
    """An option with its default as a fault file writes it; a flag that is left to the dialect has none."""
    if option.default is None:
        return name
    return f"{name} = {_toml(option.default)}"


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def make_complaints(readme: str) -> list[str]:
    """The table of targets has every target of the Makefile and no other, and says which do nothing yet."""
    (phony,) = re.findall(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    text = section(readme, "Development")
    written = {word.removeprefix("make ") for word in first_cells(text)}
    announced = {cells[0].strip("`") for cells in rows(text) if "not built yet" in cells[1]}
    folders = {"make bench": "bench", "make test-engines": "tests/engines"}
    empty = {target for target, folder in folders.items() if not any((ROOT / folder).glob("*.py"))}
    return differences("make", written, set(phony.split())) + differences("not built", announced, empty)


def link_complaints(readme: str) -> list[str]:
    """Links within the page lead somewhere."""
    titles = {anchor_of(title) for title in headings(readme)}
    return [f"the link #{anchor} leads nowhere" for anchor in sorted(anchors(without_blocks(readme)) - titles)]


def config_blocks(readme: str) -> list[str]:
    """The TOML examples that are whole configurations."""
    return [block.text for block in blocks(readme) if block.info == "toml config"]


CHECKS: dict[Callable[[str], list[str]], str] = {
    command_complaints: "`--log-format auto",
    setting_complaints: "usage_grace_s = 2",
    variable_complaints: "`KIMI_TOKENIZER`",
    header_complaints: "`x-kimi-tags`",
    error_complaints: "`buffer_full`",
    metric_complaints: "`kimi_in_flight`",
    path_complaints: "`GET /ready`",
    unbuilt_complaints: "`server.cors_origins`",
    money_complaints: "`write_1h_tokens`",
    fault_complaints: "`overload`",
    sdk_complaints: "`timeout_s`",
    emulator_complaints: "`for_s = 2`",
    make_complaints: "`make chaos`",
    link_complaints: "## Money",
}
"""Each check, and something on the page that it must miss."""


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_readme_is_complete_and_true(check: Callable[[str], list[str]]) -> None:
    assert check(README) == []


@pytest.mark.parametrize(("check", "words"), CHECKS.items(), ids=[check.__name__ for check in CHECKS])
def test_a_check_complains_about_what_is_missing(check: Callable[[str], list[str]], words: str) -> None:
    assert words in README
    assert check(README.replace(words, "")) != []


def loaded(text: str, folder: Path) -> Settings:
    """The settings in a configuration's text."""
    path = folder / "kimi-gateway.toml"
    path.write_text(text, "utf-8")
    return load(path, SECRETS)


def test_the_block_of_defaults_is_what_a_bare_file_gives(tmp_path: Path) -> None:
    full = loaded(defaults_block(README), tmp_path)
    bare = loaded(
        '[[targets]]\nname = "moonshot"\ndialect = "moonshot"\n'
        '[[routes]]\nmodel = "kimi-k3.1-pro"\n[[keys]]\nname = "team-a"\nkey_env = "TEAM_A_KEY"\n',
        tmp_path,
    )
    for name in (*SECTIONS, "targets", "routes", "keys"):
        assert getattr(full, name) == getattr(bare, name), name


def test_a_changed_default_would_be_seen(tmp_path: Path) -> None:
    changed = defaults_block(README).replace("usage_grace_s = 2", "usage_grace_s = 3")
    assert loaded(changed, tmp_path).timing != loaded(defaults_block(README), tmp_path).timing


def test_every_example_of_a_configuration_loads(tmp_path: Path) -> None:
    examples = config_blocks(README)
    assert len(examples) >= len(DIALECTS)
    for text in examples:
        assert loaded(text, tmp_path).targets


def test_the_example_of_a_fault_file_is_one() -> None:
    (example,) = (block.text for block in blocks(README) if block.info == "toml faults")
    assert [rule.kind for rule in read_fault_file(example).rules] == ["cut"]


def test_the_picture_of_the_layers_is_the_enforced_one() -> None:
    pictures = {
        block.marks[0]: facts.split_layers(block.text)
        for block in blocks(ARCHITECTURE)
        if block.language == "layers"
    }
    assert pictures == facts.layers()


def test_the_architecture_page_names_only_modules_that_there_are() -> None:
    pattern = r"(?:kimi_gateway|kimi_sdk|backends|pricing)(?:\.\w+)+"
    named = {word for word in code_words(ARCHITECTURE) if re.fullmatch(pattern, word)}
    assert named
    for name in sorted(named):
        path = ROOT.joinpath(*name.split("."))
        assert path.with_suffix(".py").exists() or path.is_dir(), name


def test_the_changelog_has_this_version_in_the_form_area_change() -> None:
    assert re.search(rf"^## .*{re.escape(__version__)}", CHANGELOG, re.MULTILINE)
    entries = re.findall(r"^- (.+)$", CHANGELOG, re.MULTILINE)
    assert entries
    assert [entry for entry in entries if not re.match(r"[a-z_]+(?:, [a-z_]+)*: \S", entry)] == []
