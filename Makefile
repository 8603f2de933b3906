# Everything runs in .venv, which is made on first use: no other set-up is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
PAGE := src/torchglass/views/web/page/.stamp
FRONTEND := $(shell find frontend -type f -not -path '*/node_modules/*' 2>/dev/null)

# Tests start many interpreters, and each would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test check compat services device lint types imports shape bench docs site format clean

help: ## Show what can be made.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Torchglass needs Python 3.10 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Torchglass into $(VENV) (torch is large; the first time takes minutes) …"
	@$(INSTALL) -e . hatchling
	@touch $@

$(VENV)/.developing: $(VENV)/.installed
	@echo "Installing what the tests and checks need …"
	@$(INSTALL) -e '.[dev,docs]'
	@touch $@

# An editable install builds the page once; later changes to its source are built here.
$(PAGE): $(VENV)/.installed $(FRONTEND)
	@$(BIN)/python hatch_build.py
	@touch $@

ready: $(VENV)/.installed $(PAGE)
developing: ready $(VENV)/.developing
.PHONY: ready developing

demo: ready ## Train a small model, watch it, and look inside.
	@$(BIN)/torchglass demo

test: developing ## Run the everyday tests, browser tests included; `make check` runs the slow ones, too.
	@$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "not slow" $(ARGS)

check: developing lint types imports shape site ## Everything that must hold before a commit.
	@$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report= $(ARGS)

# Each version has an environment outside of the clone: torch with CUDA takes 5 GB.
COMPAT := 2.6.0 2.9.1
COMPAT_DIR := $(or $(TMPDIR),/tmp)/torchglass-compat
COMPAT_TESTS := tests/unit/capture tests/unit/store tests/unit/results tests/features

compat: $(PAGE) $(COMPAT:%=compat-%) ## Run the tests of capture, store, results and features on older versions of torch.

compat-%:
	@test -x $(COMPAT_DIR)-$*/bin/python || $(PYTHON) -m venv $(COMPAT_DIR)-$*
	@echo "Installing torch $* into $(COMPAT_DIR)-$* (the first time takes minutes) …"
	@grep -v '^torch==' constraints.txt > $(COMPAT_DIR)-$*/constraints.txt
	@$(COMPAT_DIR)-$*/bin/python -m pip install --quiet --disable-pip-version-check \
		-c $(COMPAT_DIR)-$*/constraints.txt torch==$* -e '.[dev]' hatchling
	PATH="$(COMPAT_DIR)-$*/bin:$$PATH" $(COMPAT_DIR)-$*/bin/python -m pytest -n 2 --dist loadfile $(COMPAT_TESTS) $(ARGS)

# MLflow's server needs another version of pyarrow, so it has an environment of its own.
SERVICES_DIR := $(or $(TMPDIR),/tmp)/torchglass-services

services: developing ## Run the tests that need Ray, or a real MLflow server, which is installed outside of the clone.
	@test -x $(SERVICES_DIR)/bin/mlflow || $(PYTHON) -m venv $(SERVICES_DIR)
	@$(SERVICES_DIR)/bin/python -m pip install --quiet --disable-pip-version-check mlflow
	@$(INSTALL) -e '.[ray]'
	TORCHGLASS_RAY=1 TORCHGLASS_MLFLOW=$(SERVICES_DIR)/bin/mlflow $(BIN)/python -m pytest tests/integrations/test_mlflow.py tests/integrations/test_ray.py $(ARGS)

device: developing ## Count the waits of every verb on a simulated CUDA device, or on your GPU, and run its tests.
	$(BIN)/python -m tests.device $(ARGS)

lint: developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: developing
	$(BIN)/mypy

imports: developing
	$(BIN)/lint-imports

shape: developing
	@$(BIN)/python -m tools.shape --check

format: developing ## Rewrite the code in our format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: developing ## Measure us beside our peers.
	@$(INSTALL) -e '.[bench]'
	$(BIN)/python -m benchmarks $(ARGS)

docs: developing ## Renew the pictures, outputs and tables of the documentation, and build its site.
	$(BIN)/python -m docs.build
	@$(MAKE) --no-print-directory site

site: developing ## Build the documentation into site/, strictly and offline.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean: ## Remove the environment and everything built.
	rm -rf $(VENV) src/torchglass/views/web/page frontend/node_modules dist site .coverage* .mypy_cache .ruff_cache .pytest_cache
