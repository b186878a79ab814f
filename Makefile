# Antiphon. `make help` says what each word does; nothing is needed beforehand but Python 3.11 or later and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVE := $(VENV)/.ready-to-serve
TEST := $(VENV)/.ready-to-test
LOCK := requirements.lock
# Words for the server: make serve ARGS="--port 9000"; words for pytest: make test ARGS="-k gate"
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help serve test prove check snapshots bench clean

help:  ## say what each word does
	@echo "make WORD [ARGS=...]"; echo
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(SERVE)  ## set everything up, then serve the embedded model on http://127.0.0.1:8000/v1
	$(BIN)/antiphon serve $(ARGS)

test: $(TEST)  ## set everything up, then run the tests (fixed seeds, reduced counts)
	$(BIN)/python -m pytest $(ARGS)

prove: $(TEST)  ## the tests with full counts: every cut, 1000 random ways, 10 000 streams a dialect
	ANTIPHON_PROVE=1 $(BIN)/python -m pytest --timeout 1800 $(ARGS)

check: $(TEST)  ## lint, format, strict types, layers and sizes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_sizes.py

snapshots: $(TEST)  ## write the snapshots anew; then read the diff
	$(BIN)/python -m pytest -q --snapshot-update tests/snapshots $(ARGS)
	@git --no-pager diff --stat -- snapshots
	@echo "Read every line of 'git diff snapshots/' before you commit: a snapshot is a claim about the wire."

bench: $(TEST)  ## what a token costs on its way from the engine to the socket, stage by stage
	$(BIN)/python -m tests.bench.protocol $(ARGS)

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .codex .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info

# The environment, once for each change of the two files that describe it.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "antiphon needs Python 3.11 or later; say make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(SERVE): pyproject.toml $(LOCK) | $(VENV)/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(LOCK) --editable '.[torch]'
	@touch $@

$(TEST): pyproject.toml $(LOCK) | $(VENV)/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint $(LOCK) --editable '.[torch,dev]'
	@touch $(SERVE) $@
