# Everything runs in .venv, which is made on first use: no other set-up is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PAGE := src/torchglass/views/web/page/.stamp
FRONTEND := $(shell find frontend -type f -not -path '*/node_modules/*' 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types imports bench docs format clean

help: ## Show what can be made.
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

$(VENV)/.installed: pyproject.toml constraints.txt hatch_build.py
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
		{ echo "Torchglass needs Python 3.10 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing Torchglass into $(VENV) (torch is large; the first time takes minutes) …"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

# An editable install builds the page once; later changes to its source are built here.
$(PAGE): $(VENV)/.installed $(FRONTEND)
	@$(BIN)/python hatch_build.py
	@touch $@

ready: $(VENV)/.installed $(PAGE)
.PHONY: ready

demo: ready ## Train a small model, watch it, and look inside.
	@$(BIN)/torchglass demo

test: ready ## Run the tests, browser tests included.
	@$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

check: ready lint types imports ## Everything that must hold before a commit.
	@$(BIN)/python -m tests.browser.chromium
	$(BIN)/python -m pytest -n 2 --dist loadfile --cov --cov-report=term $(ARGS)

lint: ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: ready
	$(BIN)/mypy

imports: ready
	$(BIN)/lint-imports

format: ready ## Rewrite the code in our format.
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: ready ## Measure us beside our peers.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python -m benchmarks $(ARGS)

docs: ready ## Rebuild the pictures and tables in docs/ and README.
	$(BIN)/python -m docs.build

clean: ## Remove the environment and everything built.
	rm -rf $(VENV) src/torchglass/views/web/page frontend/node_modules dist .coverage* .mypy_cache .ruff_cache .pytest_cache
