# One command sets up and runs; a second call reuses the set-up. Needs Python 3.11+ and make, nothing else.
#   make quickstart            train the first sweep and write quickstart.html
#   make test [EXTRAS=torch]   the tests that guard a change, in about six minutes on two cores
#   make test-all              all tests: every experiment at tiny scale, kills, fuzzing, committed tables, browsers
#                              (both take further extras, comma separated)
PYTHON ?= python3
EXTRAS ?=
VENV   ?= .venv
BIN    := $(VENV)/bin
comma  := ,
PYTEST := $(BIN)/python -m pytest --numprocesses auto --dist loadfile
STAMP  := $(VENV)/.installed-dev$(if $(EXTRAS),-$(subst $(comma),-,$(EXTRAS)))

.PHONY: quickstart test test-all test-rest lint format constraints clean

quickstart: $(VENV)/.installed
	$(BIN)/recombine quickstart

test: $(STAMP)
	$(PYTEST) -m "not slow" $(ARGS)

test-all: $(STAMP)
	$(PYTEST) $(ARGS)

test-rest: $(STAMP)
	$(PYTEST) -m slow $(ARGS)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Universal pins without addresses: one file for every platform and Python. Needs uv.
constraints:
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
	  --no-annotate --custom-compile-command "make constraints" --no-emit-find-links --no-emit-index-url \
	  --upgrade-package torch==2.13.0 --output-file constraints.txt

$(BIN)/python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "Recombine needs Python 3.11 or newer; this is %d.%d. Try: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[dev$(if $(EXTRAS),$(comma)$(EXTRAS))]"
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis
