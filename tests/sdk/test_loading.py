"""Ctrl-C while a package is imported late: the wait ends, the import does not."""

import signal
import sys
import threading
from pathlib import Path

import pytest

from kimi_sdk.loading import loaded

ONCE = """
import sys, time
assert not hasattr(sys, "_imported_once"), "a second try of a half import"
sys._imported_once = True
for _ in range(30):
    time.sleep(0.01)
whole = True
"""


def test_an_interrupted_import_is_whole_the_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_to_import.py").write_text(ONCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "_imported_once", None, raising=False)
    monkeypatch.delattr(sys, "_imported_once")
    main = threading.main_thread().ident
    assert main is not None
    timer = threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        loaded("slow_to_import")
    timer.join()

    assert loaded("slow_to_import").whole
    assert loaded("slow_to_import") is sys.modules.pop("slow_to_import")
    del sys._imported_once  # type: ignore[attr-defined]


def test_what_an_import_raises_is_raised_here_and_the_next_call_tries_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ModuleNotFoundError, match="not_there_yet"):
        loaded("not_there_yet")
    (tmp_path / "not_there_yet.py").write_text("here = True")
    sys.path_importer_cache.clear()

    assert loaded("not_there_yet").here
