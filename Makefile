# Every target sets up what it needs; a second run of any of them takes seconds.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= python3.11
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
SETUP := $(VENV)/.installed
# Two at most: a third one with its threads takes more time of two cores than it saves, and memory
# for one more server with its model.
WORKERS := --numprocesses logical --maxprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: up setup test lint format docs exactness bench lock browser clean help

help:  ## this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 12

up: $(SETUP)  ## set up everything, then run API and console on the embedded model
	@exec $(BIN)/paceline up

setup: $(SETUP)  ## only create the environment and install

# torch first and by itself, outside the hashes: its build differs by machine (CPU, CUDA).
$(VENV)/.torch:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not installed; install it or run: make PYTHON=python3 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install --no-compile --progress-bar on '$(TORCH)'
	@touch $@

# Compiled on all cores at once, which pip does on one. Some files of packages are for other Pythons.
$(VENV)/.locked: requirements.lock $(VENV)/.torch
	$(PIP) install --no-compile --progress-bar on --require-hashes --no-deps -r requirements.lock
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $@

$(SETUP): pyproject.toml $(VENV)/.locked
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# Bytecode is kept even where the environment forbids it: tests start a hundred processes, and
# rewriting the assertions of all test files takes longer than importing what they test.
test: $(SETUP) browser lint  ## set up and run every check
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest $(WORKERS)

lint: $(SETUP)  ## format check, lint, types, import contract
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --no-cache

format: $(SETUP)  ## format and sort imports
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .

docs: $(SETUP)  ## write the list of files in docs/architecture.md anew
	$(BIN)/python -m tests.packaging.layout

exactness: $(SETUP)  ## the full losslessness matrix: make exactness PROMPTS=file.jsonl
	@test -n "$(PROMPTS)" || { echo "usage: make exactness PROMPTS=file.jsonl [ARGS='--limit 20 --max-tokens 128']" >&2; exit 2; }
	$(BIN)/python -m tests.engine.exactness --prompts '$(PROMPTS)' $(ARGS)

# A server must be running (make up); see docs/performance.md for what to compare.
bench: $(SETUP)  ## measure the running server: make bench PROMPTS=file.jsonl [ARGS="--limit 40"]
	@test -n "$(PROMPTS)" || { echo "usage: make bench PROMPTS=file.jsonl [ARGS='--modes none,auto']" >&2; exit 2; }
	$(BIN)/paceline bench --prompts '$(PROMPTS)' $(ARGS)

browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; \
	  else \
	    echo "The browser tests need Chromium. Install it (Debian: apt-get install chromium), then run this again." >&2; exit 1; \
	  fi; }

lock: $(VENV)/.torch  ## resolve requirements.lock anew from pyproject.toml
	@test -x $(VENV)/lock/bin/uv || { $(PYTHON) -m venv $(VENV)/lock && $(VENV)/lock/bin/python -m pip install --quiet uv; }
	$(VENV)/lock/bin/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
	  --fork-strategy fewest --generate-hashes --no-annotate --no-emit-index-url \
	  --custom-compile-command 'make lock' --upgrade --quiet --output-file requirements.lock

clean:  ## remove the environment and what the tools and tests left
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache tests/artifacts
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
