# Everything that one does here, by name. `make help` lists it.

PYTHON ?= python3
BIN := .venv/bin
# Newer than what it depends on while the environment is up to date.
READY := .venv/.ready
# For packages and for what builds them (setuptools). pip before 25.3 takes both from the first, later ones the latter
# from the second.
PINNED := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt

.PHONY: help run test docs package bench mutants lint format clean
.DEFAULT_GOAL := help

help:  ## say what there is to make
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(READY)  ## compare corrected momentum and Adam with plain ones, in small (1 to 2 minutes on 2 cores), and report
	$(BIN)/unstale-lab reproduce fig3 long_memory --scale quick
	$(BIN)/unstale-lab report

test: lint  ## lint, check types, run all tests and doctests
	$(BIN)/pytest -n 2 --dist loadgroup -q

docs: $(READY)  ## build the documentation site in build/docs, warnings as errors
	$(BIN)/python tools/make_notebook.py --check
	$(BIN)/sphinx-build --fail-on-warning --quiet -c docs . build/docs
	@echo "open build/docs/index.html"

package: $(READY)  ## build wheel and sdist; type the README and the tutorial into an empty environment with the wheel
	$(BIN)/python tools/check_package.py

bench: $(READY)  ## measure what a corrected step costs, and how fast sweeps are
	$(BIN)/python benchmarks/run.py
	$(BIN)/python benchmarks/engine.py

mutants: $(READY)  ## break the mathematics on purpose, and see that the tests notice
	$(BIN)/python tools/mutants.py

lint: $(READY)  ## check style and types, changing nothing
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

format: $(READY)  ## fix style automatically
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

clean:  ## remove the environment, builds and caches; results stay
	rm -rf .venv build dist src/*.egg-info lab/build lab/src/*.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
	find src lab tests examples benchmarks -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

$(READY): pyproject.toml lab/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "unstale needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(PINNED) $(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev,docs,evaluate]" -e "lab[atari,ray]"
	@touch $@
