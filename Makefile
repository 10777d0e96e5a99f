# Everything runs from the virtual environment in .venv; `make install` makes it and is quick when nothing changed.
# EXTRA=lint installs no more than `make lint` and `make architecture` need.
SHELL := /bin/sh
VENV := .venv
BIN := $(VENV)/bin
EXTRA ?= dev
# Side by side, each test in the process that is free next; `pytest` itself runs one after the other.
PYTEST := $(BIN)/python -m pytest --numprocesses=logical --maxprocesses=8 --maxschedchunk=1
STAMP := $(VENV)/.installed-$(EXTRA)
# What needs PyTorch has an environment of its own.
TORCH_VENV := .venv-torch
TORCH_BIN := $(TORCH_VENV)/bin
TORCH_STAMP := $(TORCH_VENV)/.installed
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

# Tests start hundreds of Python processes. Each would compile what it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo multi-turn grpo test test-fast properties install-torch test-torch coverage lint schemas types architecture docs wheel bench simulate fold-version chaos clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sort | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

install: $(STAMP) ## the virtual environment in .venv with everything in it

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Rollstream needs Python 3.11 or newer; found none on PATH."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$(EXTRA)]'
	@touch $(STAMP)

demo: install ## the main job on an embedded Kafka, with a policy that learns (CHAOS=1 kills processes meanwhile)
	$(BIN)/python -m examples.demo $(if $(CHAOS),--chaos)

multi-turn: install ## an agent of many turns learns FrozenLake, step by step through a trajectory pool (seconds)
	$(BIN)/python -m examples.multi_turn

# Another seed has another folder: for seed in 0 1 2; do make grpo SEED=$$seed; done
grpo: $(TORCH_STAMP) ## a transformer learns with GRPO on two ranks (SEED=1; KILL=1 kills one with -9, and compares)
	$(TORCH_BIN)/python -m examples.grpo_torch $(if $(SEED),--seed $(SEED) --folder runs/grpo-$(SEED)) $(if $(KILL),--kill-rank-at 20)

# Most tests that need Kafka, Ray or another process wait for it: two for each core keep them busy. Each
# process has a Kafka of its own, and needs 1 GiB of memory with it.
test: install ## every test, on all cores
	$(PYTEST) --numprocesses=$$(( $$(getconf _NPROCESSORS_ONLN) * 2 ))

test-fast: install ## the tests that need no process and no socket, on all cores
	$(PYTEST) tests/unit tests/architecture

# Whoever runs it draws others; SEED= repeats a run's.
properties: install ## the tests of properties that need no process, with examples drawn anew
	@seed=$${SEED:-$$(od -An -N4 -tu4 /dev/urandom | tr -d ' ')}; \
		echo "properties are tried with the examples of seed $$seed; to repeat: make properties SEED=$$seed"; \
		$(PYTEST) -m hypothesis --hypothesis-seed=$$seed tests/unit || \
		{ echo "a property does not hold; to repeat: make properties SEED=$$seed"; exit 1; }

test-torch: $(TORCH_STAMP) ## the tests that need PyTorch, in .venv-torch (3 GB to load, the first time)
	$(TORCH_BIN)/python -m pytest tests/trainers
	cd tests && ../$(TORCH_BIN)/python -m trainers --passed

install-torch: $(TORCH_STAMP) ## .venv-torch, with PyTorch (3 GB to load, the first time)

$(TORCH_STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "Rollstream needs Python 3.11 or newer; found none on PATH."; exit 1; }
	@test -x $(TORCH_BIN)/python || $(PYTHON) -m venv $(TORCH_VENV)
	$(TORCH_BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev-torch]'
	@touch $(TORCH_STAMP)

coverage: install ## the tests of parts, which need no process and no socket, and how much of the sources they run
	$(PYTEST) --cov --cov-report= tests/unit
	@echo "coverage: $$($(BIN)/coverage report --format=total) % of the lines, by tests/unit"

lint: install ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

schemas: install ## each version of a schema that is shipped against all later ones
	cd tests && ../$(BIN)/python -m harness.compatibility

types: install ## mypy, strict, over sources and tests
	$(BIN)/mypy

# Without tests/conftest.py, which needs what starts a Kafka.
architecture: install ## the code about itself: who imports whom, purity, features that are proved
	$(BIN)/python -m pytest --confcutdir=tests/architecture tests/architecture

# Complaints about docstrings end the build too; it does not count them itself.
docs: install ## the site with guides and reference, in site/, and how long pages and sentences are
	@log=$$($(BIN)/zensical build --strict --clean 2>&1); status=$$?; echo "$$log"; \
		! echo "$$log" | grep -q '^griffe: ' && exit $$status
	cd tests && ../$(BIN)/python -m harness.prose

wheel: install ## the wheel, in dist/
	$(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir dist .

bench: install ## end-to-end speed and memory, in ratios to raw Kafka
	$(BIN)/python -m benchmarks.end_to_end

# SEEDS=10000 FIRST=0, or MINUTES=20; WORLD= names one of them; BROKEN=1 runs those with a defect until each is caught.
simulate: install ## whole systems under seeds, on all cores; a seed that fails says how to repeat it
	cd tests && ../$(BIN)/python -m simulation $(if $(SEEDS),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) \
		$(if $(MINUTES),--minutes $(MINUTES)) $(if $(WORLD),--world $(WORLD)) $(if $(BROKEN),--broken)

fold-version: install ## pins the sources of the sampler's fold, once what was saved of it still holds
	cd tests && ../$(BIN)/python -m simulation --world snapshots
	cd tests && ../$(BIN)/python -m simulation.fold_version

# KILLS=200; SEED= repeats which processes are chosen, not what they are at.
chaos: install ## kill -9 and SIGSTOP of real processes at 2,500 rollouts/s; then everything is read once more
	cd tests && ../$(BIN)/python -m chaos $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) $(if $(STORE),--store $(STORE))

clean: ## removes what was built and what the demo wrote
	rm -rf $(VENV) $(TORCH_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage .rollstream dist build site runs
