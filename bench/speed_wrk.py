"""The closed loop of `bench/speed.py` by `wrk`, with --loop wrk where that is on the path.

It takes less of the machine than our own, but cannot acknowledge at once what comes: a peer that sends an answer
in pieces without TCP_NODELAY then waits 40 ms for the kernel, and its figures are those of 64 / 40 ms.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from speed_calls import small
from speed_process import StartError

BODIES: Final = 1000
_SCRIPT: Final = """\
local asked, at = {{}}, 0
function init(args)
  for line in io.lines("{bodies}") do
    asked[#asked + 1] = wrk.format("POST", "/v1/chat/completions", {{ {headers} }}, line)
  end
end
function request()
  at = at % #asked + 1
  return asked[at]
end
"""
_TIME: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3, "m": 6e4}
_WAIT_S: Final = 60.0


def is_present() -> bool:
    """Whether there is a wrk that runs."""
    program = shutil.which("wrk")
    if program is None:
        return False
    said = subprocess.run([program, "-v"], capture_output=True, text=True, check=False)
    return "wrk" in said.stdout.split(" ", 1)[0]


def _ms(text: str) -> float:
    found = re.fullmatch(r"([\d.]+)(us|ms|s|m)", text)
    assert found is not None, text
    return float(found[1]) * _TIME[found[2]]


def rps(
    port: int, headers: Mapping[str, str], connections: int, seconds: float, say: str, directory: Path
) -> tuple[dict[str, float | None], int]:
    """Requests/s and latencies over so many connections, and how many requests there were. Raises `StartError`."""
    bodies, script = directory / "bodies.jsonl", directory / "post.lua"
    bodies.write_bytes(b"".join(small(say, number) + b"\n" for number in range(BODIES)))
    fields = {"Host": "localhost", "Content-Type": "application/json", **headers}
    lua = ", ".join(f'["{name}"] = "{value}"' for name, value in fields.items())
    script.write_text(_SCRIPT.format(bodies=bodies, headers=lua), "utf-8")
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency", "--timeout", "30s"]
    command += ["-s", str(script), f"http://127.0.0.1:{port}/v1/chat/completions"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_WAIT_S + seconds, check=False)
    said = done.stdout
    rate, count = re.search(r"Requests/sec:\s+([\d.]+)", said), re.search(r"(\d+) requests in", said)
    if done.returncode or "Non-2xx" in said or rate is None or count is None:
        raise StartError(f"wrk: {' '.join((said + done.stderr).split())[-300:]}")
    percentiles = {name: _ms(value) for name, value in re.findall(r"^\s+(50|99)%\s+(\S+)", said, re.MULTILINE)}
    figures = {"rps": float(rate[1]), "p50_ms": percentiles.get("50"), "p99_ms": percentiles.get("99")}
    return figures, int(count[1])
