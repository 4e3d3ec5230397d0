"""What is installed from a wheel: the four packages whole, working with no more than they declare.

The wheel is built by the project's own backend, without network. Where that backend is a setuptools that cannot
write wheels yet (before 70.1, without the package `wheel`), only its build step runs: it lays out the same files.
The checks then run in an interpreter that sees the standard library, those files, and a folder of chosen
distributions; neither the checkout nor anything else that happens to be installed.
"""

import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kimi_gateway import __version__
from support.facts import PACKAGES
from support.pages import ROOT
from support.processes import clean_environment

SITE = Path(sysconfig.get_paths()["purelib"])
INSTALL = "pip install 'kimi-gateway[server]'"
_WHEEL = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"
_LAYOUT = "import setuptools; setuptools.setup()"
_PATHS = "import sys; sys.path[:0] = sys.argv[1:3]; del sys.argv[1:3]\n"


@dataclass(frozen=True, slots=True)
class Built:
    """The files of the wheel in a folder, and its entry points as text."""

    folder: Path
    entry_points: str


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The wheel, built from a copy and unpacked."""
    source, folder = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "tests/support", source / "tests/support")  # what must not be packed
    made = _run(["-c", _WHEEL, str(folder)], source)
    if made.returncode == 0:
        (wheel,) = folder.glob("*.whl")
        zipfile.ZipFile(wheel).extractall(folder)
        wheel.unlink()
    else:
        assert "bdist_wheel" in made.stderr, made.stderr
        laid = _run(
            ["-c", _LAYOUT, "-q", "build_py", "--build-lib", str(folder), "egg_info", "--egg-base", str(folder)],
            source,
        )
        assert laid.returncode == 0, laid.stderr
    (metadata,) = [path for path in folder.iterdir() if path.suffix in (".dist-info", ".egg-info")]
    entry_points = (metadata / "entry_points.txt").read_text("utf-8")
    shutil.rmtree(metadata)
    return Built(folder, entry_points)


def _run(arguments: Sequence[str], directory: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", *arguments]
    env = clean_environment()
    return subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, timeout=50)


def isolated(built: Built, site: Path, code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Runs code that sees the standard library, the wheel's files and the distributions in `site`."""
    directory = built.folder.parent
    return _run(["-I", "-S", "-c", _PATHS + code, str(built.folder), str(site), *arguments], directory)


def needed(name: str, extras: frozenset[str] = frozenset()) -> Iterator[str]:
    """The names of all distributions that one requires, directly or not, without its optional ones."""
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        wishes = [{"extra": extra} for extra in ("", *extras)]
        if requirement.marker is None or any(requirement.marker.evaluate(wish) for wish in wishes):
            yield str(canonicalize_name(requirement.name))
            yield from needed(requirement.name, frozenset(requirement.extras))


@pytest.fixture(scope="module")
def base_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the base install brings, and nothing of the server's or the tests'."""
    site = tmp_path_factory.mktemp("site")
    for name in set(needed("kimi-gateway")):
        tops = {path.parts[0] for path in distribution(name).files or [] if path.parts[0] != ".."}
        for top in tops - {"__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(SITE / top)
    return site


def contents(folder: Path) -> set[str]:
    """The files below a folder, by their paths from there."""
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix() for path in paths}


def test_the_wheel_holds_the_four_packages_whole_and_nothing_else(built: Built) -> None:
    held = contents(built.folder)
    assert held == {f"{name}/{path}" for name in PACKAGES for path in contents(ROOT / name)}
    assert {path.partition("/")[0] for path in held} == set(PACKAGES)
    assert {f"{name}/py.typed" for name in PACKAGES} <= held
    assert {"kimi_gateway/example.toml", "pricing/card_data/moonshot-kimi-k3.1-pro.toml"} <= held
    assert any(re.fullmatch(r"pricing/ledger/migrations/versions/\w+\.py", path) for path in held)
    assert not [path for path in held if "/test" in path or path.endswith((".pyc", ".db"))]


def test_the_wheel_brings_the_commands(built: Built) -> None:
    assert "kimi-gateway = kimi_gateway.__main__:main" in built.entry_points
    assert "kimi-pricing = pricing.__main__:main" in built.entry_points


def test_the_base_install_has_the_client_and_the_prices(built: Built, base_site: Path) -> None:
    code = (
        "import kimi_sdk, importlib.util\n"
        "from pricing.cards import load_cards\n"
        "with kimi_sdk.Chat(base_url='http://127.0.0.1:9/v1', timeout_s=1) as chat:\n"
        "    try:\n"
        "        chat.ask('Hello?')\n"
        "    except kimi_sdk.ConnectionFailed as failure:\n"
        "        print(type(failure).__name__)\n"
        "print(kimi_sdk.__file__, len(load_cards().cards) > 3, importlib.util.find_spec('fastapi'))\n"
    )
    done = isolated(built, base_site, code)
    assert done.stderr == ""
    assert done.stdout == f"ConnectionFailed\n{built.folder / 'kimi_sdk/__init__.py'} True None\n"


@pytest.mark.parametrize("package", ["kimi_gateway", "pricing"])
def test_without_the_server_extra_a_command_says_what_to_install(
    built: Built, base_site: Path, package: str
) -> None:
    code = f"import runpy; runpy.run_module({package!r}, run_name='__main__', alter_sys=True)"
    done = isolated(built, base_site, code, "--help")
    assert (done.returncode, done.stdout) == (2, "")
    assert INSTALL in done.stderr
    assert "Traceback" not in done.stderr


def test_with_the_server_extra_the_commands_work_from_the_wheel(built: Built) -> None:
    code = "import runpy; runpy.run_module({!r}, run_name='__main__', alter_sys=True)"
    version = isolated(built, SITE, code.format("kimi_gateway"), "--version")
    assert (version.returncode, version.stdout) == (0, f"kimi-gateway {__version__}\n"), version.stderr
    rates = isolated(built, SITE, code.format("pricing"), "rates", "--format", "json")
    assert (rates.returncode, "moonshot/kimi-k3.1-pro@2026-10-24" in rates.stdout) == (0, True), rates.stderr


def test_the_wheel_can_make_a_ledger(built: Built, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    code = f"from pricing.ledger.store import Store; store = Store({url!r}, create=True); print(store.get('kr_'))"
    done = isolated(built, SITE, code)
    assert (done.returncode, done.stdout) == (0, "None\n"), done.stderr
