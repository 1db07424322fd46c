# `make demo` and `make test` set up everything they need in .venv; another Python: make demo PY=python3.12
PY ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Stamps: what is installed in the environment, and out of date when the requirements change.
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help setup demo test slow check lint floors types format wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

setup: $(DEV)  ## install nmt and the tools of its developers into .venv

demo: $(RUNTIME)  ## the whole job on the built-in corpus: prepare, train, average, decode, score
	$(BIN)/nmt prepare demo
	$(BIN)/nmt train demo
	$(BIN)/nmt average runs/demo
	cp data/demo/test.en runs/demo/test.src
	cp data/demo/test.de runs/demo/test.ref
	$(BIN)/nmt decode --beam 4 --model runs/demo/averaged < runs/demo/test.src > runs/demo/test.hyp
	$(BIN)/nmt score runs/demo/test.ref -i runs/demo/test.hyp --fail-under BLEU=90
	@paste runs/demo/test.src runs/demo/test.hyp runs/demo/test.ref | awk -F '\t' \
	  'NR % 200 == 1 {printf "\nsource       %s\ntranslation  %s\nreference    %s\n", $$1, $$2, $$3}'

test: $(DEV)  ## the tests, without the slow ones and those that need the network or Docker
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not network and not docker"

slow: $(DEV)  ## the slow tests
	$(BIN)/python -m pytest -m slow

check: lint types floors test wheel  ## everything that a change must pass

lint: $(DEV)  ## ruff and hadolint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@if [ -x $(BIN)/hadolint ]; then echo "$(BIN)/hadolint Dockerfile"; $(BIN)/hadolint Dockerfile; \
	  else echo "hadolint has no package for this machine: the Dockerfile was not checked"; fi

types: $(DEV)  ## mypy, strict
	$(BIN)/mypy

floors: $(DEV)  ## the layout: which room may import which
	$(BIN)/python -m pytest -q tests/test_architecture.py tests/test_source_rules.py

format: $(DEV)  ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: $(DEV)  ## build the wheel, and run the command that it installs
	rm -rf build/wheel dist
	$(PIP) wheel --quiet --no-deps --no-build-isolation --wheel-dir dist .
	$(PIP) install --quiet --no-deps --target build/wheel dist/*.whl
	cd build && PYTHONPATH=wheel wheel/bin/nmt --help > help.txt
	@echo "nmt --help runs from $$(echo dist/*.whl)"

clean:  ## remove the environment, builds and caches; data/ and runs/ stay
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -exec rm -rf {} +

$(BIN)/python:
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || \
	  { echo "nmt needs Python 3.11 or newer, and $(PY) is not: make PY=python3.12, for example" >&2; exit 1; }
	$(PY) -m venv $(VENV)

$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing nmt into $(VENV); torch is most of the download"
	$(PIP) install --quiet -c constraints.txt -e .
	touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing nmt and its development tools into $(VENV); torch is most of the download"
	$(PIP) install --quiet -c constraints.txt -e ".[dev]"
	touch $(RUNTIME) $@
