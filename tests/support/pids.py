"""Processes by their ids: whose children they are, and whether they are gone."""

import time
from collections.abc import Callable

import psutil


def children(pid: int, having: str) -> list[psutil.Process]:
    """The children of a process that have this argument in their command line."""
    found = []
    for child in psutil.Process(pid).children():
        try:
            if having in child.cmdline():
                found.append(child)
        except psutil.NoSuchProcess:
            continue
    return found


def descendants(pid: int) -> list[psutil.Process]:
    """The process and all that came of it."""
    process = psutil.Process(pid)
    return [process, *process.children(recursive=True)]


def gone(process: psutil.Process) -> bool:
    """It has ended; one that nobody has waited for yet counts as ended."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def becomes_true(condition: Callable[[], bool], within_s: float = 10.0) -> bool:
    """Whether it comes true in time."""
    until_s = time.monotonic() + within_s
    while time.monotonic() < until_s:
        if condition():
            return True
        time.sleep(0.01)
    return False
