"""Imports that Ctrl-C does not break: a half-imported package stays broken for the rest of the process."""

import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import Final

_loaded: Final[set[str]] = set()


def loaded(name: str) -> ModuleType:
    """The module, imported in a thread of its own: an interrupt ends the wait for it, not the import, which a
    later call finds done. Raises what the import raises."""
    if name in _loaded:
        return sys.modules[name]
    failures: list[BaseException] = []
    is_over = threading.Event()

    def load() -> None:
        try:
            import_module(name)
        except BaseException as err:  # handed on to the thread that waits
            failures.append(err)
        else:
            _loaded.add(name)
        finally:
            is_over.set()

    threading.Thread(target=load, name="kimi-import").start()
    is_over.wait()  # not join: interrupted, that takes the thread for ended
    if failures:
        raise failures[0]
    return sys.modules[name]
