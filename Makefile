# Tests wait for processes and clocks a third of their time, so at least three run at once.
# Every target works on a fresh machine that has Python 3.11 and make.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install run test lint types chaos bench test-engines clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@echo "installing into $(VENV); this is done once and may take a few minutes"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[server,dev]'
	@touch $(STAMP)

# Further options of `kimi-gateway serve`: make run ARGS="--port 8001"
run: install
	$(BIN)/kimi-gateway serve --emulator-if-empty $(ARGS)

test: install lint types
	$(BIN)/pytest -n $$($(BIN)/python -c 'import os; print(max(3, os.cpu_count() or 1))') --dist loadfile -m 'not chaos and not engines'

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: install
	$(BIN)/mypy

chaos: install
	$(BIN)/pytest -n 2 -m chaos --timeout 1800

bench: install
	$(BIN)/python bench/ledger.py
	$(BIN)/python bench/routing.py
	$(BIN)/python bench/speed.py --install $(ARGS)

# By hand: vLLM on this machine's CPU, 3.4 GB in an environment of its own. Where it cannot be installed, that is said
# and its tests skip.
test-engines: install
	$(BIN)/python tests/engines/install_vllm.py $(PYTHON) .venv-engines
	$(BIN)/pytest tests/engines -m engines -vv -s -rs

clean:
	rm -rf $(VENV) .venv-engines .venv-bench-* build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
