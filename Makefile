# `make demo` and `make test` set up everything they need in .venv; another Python: make demo PY=python3.12
PY ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Stamps: what is installed in the environment, and out of date when the requirements change.
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed

# The null GPU (5 GB), each version of torch in a folder of its own; a folder that is ready may be named.
NULL_GPU := tools/null_gpu
NULL_GPU_FOLDERS ?= build/null-gpu/2.11.0 build/null-gpu/2.13.0

# Tests start hundreds of processes. Each would compile torch's sources again if Python could not keep what it compiled.
export PYTHONDONTWRITEBYTECODE :=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.PHONY: help setup demo test slow check programs lint floors types format wheel null-gpu clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' Makefile

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

test: $(DEV)  ## the tests, without the slow ones
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

slow: $(DEV)  ## the slow tests
	$(BIN)/python -m pytest -m slow

check: lint programs  ## everything that a change must pass
	@$(MAKE) --no-print-directory -j 3 types wheel test

programs:  ## Chromium and nginx, for the tests of the page and of the proxy: installed as root on Debian
	@missing=""; \
	for program in chromium nginx; do command -v $$program > /dev/null || missing+=" $$program"; done; \
	if [ -z "$$missing" ]; then exit; fi; \
	install="apt-get -qqy -o DPkg::Lock::Timeout=600 install --no-install-recommends"; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null && apt-get -qq update && \
	  DEBIAN_FRONTEND=noninteractive $$install $$missing > /dev/null; then echo "installed$$missing"; \
	else echo "absent:$$missing, so their tests will be skipped"; fi

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

# setup.sh makes libcuda.so.1 last.
null-gpu: $(addsuffix /libcuda.so.1,$(NULL_GPU_FOLDERS))  ## compile, capture and replay the GPU's path without a GPU
	@failed=""; \
	for folder in $(NULL_GPU_FOLDERS); do \
	  parts=build/null-gpu/parts/$$(basename "$$folder"); \
	  run="bash $(NULL_GPU)/run.sh $$folder python"; \
	  echo "null GPU in $$folder"; \
	  $$run benchmarks/gpu/null_gpu.py --folder "$$parts" || failed+=" $$folder"; \
	  $$run benchmarks/gpu/step_model.py "$$parts" || failed+=" $$folder"; \
	  PYTHONPATH=src $$run benchmarks/gpu/kernels.py || failed+=" $$folder"; \
	done; \
	if [ -n "$$failed" ]; then echo "make null-gpu: failed in$$failed" >&2; exit 1; fi

clean:  ## remove the environment, builds and caches; data/ and runs/ stay
	rm -rf $(VENV) build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests -name __pycache__ -type d -exec rm -rf {} +

$(BIN)/python:
	@$(PY) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2> /dev/null || \
	  { echo "nmt needs Python 3.11 or newer, and $(PY) is not: make PY=python3.12, for example" >&2; exit 1; }
	$(PY) -m venv $(VENV)

# --no-compile: pip would compile 15,000 files, most of which nobody imports.
$(RUNTIME): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing nmt into $(VENV); torch is most of the download"
	$(PIP) install --quiet --no-compile -c constraints.txt -e .
	touch $@

$(DEV): pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing nmt and its development tools into $(VENV); torch is most of the download"
	$(PIP) install --quiet --no-compile -c constraints.txt -e ".[dev]"
	touch $(RUNTIME) $@

build/null-gpu/%/libcuda.so.1: $(NULL_GPU)/setup.sh $(NULL_GPU)/runtime.c $(NULL_GPU)/driver.c
	PY=$(PY) bash $< $(@D) $*
