# Every target does its own set-up: only python3 (3.11 or newer) and make are assumed.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# The documentation's tools are installed by the targets that need them.
DOCS_STAMP := $(VENV)/.docs-installed
# A notebook runs again when it, or what it runs, has changed.
NOTEBOOKS_RUN := docs/notebooks/.run
NOTEBOOK_SOURCES := $(wildcard notebooks/*.md) $(shell find src -name '*.py') docs/run_notebooks.py
# Worker processes of the test suite; each simulates 8 devices, so more than the cores there are gains nothing.
WORKERS ?= 2
ARGS   ?=
EXAMPLES ?= 500
PROGRAMS ?= 5000
FIRST ?= 100000
COUNT ?= 10000

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all soundness soundness-programs programs gpu-compile rules lint format docs notebooks bench results clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv and install the library with its development tools

$(STAMP): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "sbp-jax needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1)." \
	         "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

demo: $(STAMP) ## train a small GPT on 8 simulated devices (or the GPUs there are); options: ARGS="--steps 50"
	$(BIN)/python examples/train_gpt.py $(ARGS)

test: $(STAMP) ## the test suite; options: ARGS="-k signature", WORKERS=4
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

test-all: $(STAMP) ## the test suite with the slow tests
	$(BIN)/python -m pytest -n $(WORKERS) -m "" $(ARGS)

soundness: $(STAMP) soundness-programs ## rules on many random ops, and thousands of programs; options: EXAMPLES=2000 PROGRAMS=20000
	SBP_SOUNDNESS_EXAMPLES=$(EXAMPLES) $(BIN)/python -m pytest -n $(WORKERS) tests/rules $(ARGS)

soundness-programs: $(STAMP) ## thousands of random programs against plain JAX; options: PROGRAMS=20000
	SBP_PROGRAMS=$(PROGRAMS) $(BIN)/python -m pytest -n $(WORKERS) tests/test_random_programs.py $(ARGS)

programs: $(STAMP) ## random programs from seed FIRST on, one failing seed a line; goes on where it stopped; options: FIRST=100000 COUNT=10000
	$(BIN)/python tests/random_programs.py --from $(FIRST) --count $(COUNT) --processes $(WORKERS) --log out/programs.txt

# XLA's compiler for GPUs is 400 MB: it has an environment of its own.
gpu-compile: ## planned steps through XLA's compiler for GPUs, on a machine without one; options: ARGS="--only gpt2"
	@test -x .venv-gpu/bin/python || $(PYTHON) -m venv .venv-gpu
	.venv-gpu/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[flax]'
	.venv-gpu/bin/python -m pip install --quiet --disable-pip-version-check \
	  jax-cuda13-plugin==$$(.venv-gpu/bin/python -c 'import jaxlib; print(jaxlib.__version__)')
	.venv-gpu/bin/python benchmarks/gpu_compile.py $(ARGS)

rules: $(STAMP) ## write docs/rules.md anew, with the strategies counted
	$(BIN)/python docs/rules_table.py --count

lint: $(STAMP) ## ruff check, ruff format --check, pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python

format: $(STAMP) ## sort imports, fix what ruff can fix, format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[docs]'
	@touch $@

docs: $(DOCS_STAMP) $(NOTEBOOKS_RUN) ## the documentation, every page's code run, warnings are errors: build/docs/index.html
	$(BIN)/python -m sphinx -q -W --keep-going -j $(WORKERS) -b html docs build/docs
	@echo "wrote build/docs/index.html"

notebooks: $(NOTEBOOKS_RUN) ## run every notebook from a fresh kernel, where it or the library has changed, and time it

$(NOTEBOOKS_RUN): $(NOTEBOOK_SOURCES) | $(DOCS_STAMP)
	$(BIN)/python docs/run_notebooks.py
	@touch $@

bench: $(STAMP) ## every script in benchmarks/, one after the other
	@set -e; for script in benchmarks/*.py; do \
	  test -e "$$script" || { echo "no scripts in benchmarks/ yet"; break; }; \
	  echo "== $$script"; $(BIN)/python "$$script" $(ARGS); done

results: $(STAMP) ## write docs/benchmarks.md anew from benchmarks/results/
	$(BIN)/python docs/benchmarks_page.py

clean: ## remove caches, build products and out/; .venv stays
	rm -rf build dist out docs/notebooks .pytest_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
