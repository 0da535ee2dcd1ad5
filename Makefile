# Two commands on a fresh machine with Python 3.11+ and make: `make demo`, `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := pyproject.toml constraints.txt
PIP := $(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt

# Small models gain nothing from threads within an operation; two test processes use two cores better.
test cpus: export OMP_NUM_THREADS ?= 1
JOBS ?= 2

SUPPORTED := -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))'

.DEFAULT_GOAL := help
.PHONY: help demo test cpus check docs package clean
.DELETE_ON_ERROR:

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.outrider  ## set up, fetch the default model, decode one prompt plainly and speculatively
	$(BIN)/outrider demo

# Ray ends a process that has lost it, without a word: tests that join one run in a process of pytest-xdist's, whose
# end is a failure with a name and can be run again.
test: $(VENV)/.outrider-dev  ## set up and run the tests (PYTEST_ARGS="-k name" to choose)
	$(BIN)/outrider models pull smollm2-135m
	$(BIN)/python -m pytest -n $(JOBS) -m 'not alone' $(PYTEST_ARGS)
	$(BIN)/python -m pytest -n 1 -m alone $(PYTEST_ARGS) || test $$? -eq 5  # 5: none of those chosen is one

cpus: $(VENV)/.outrider-dev  ## run what depends on the CPU once for every lesser one that this one can pass for
	$(BIN)/python tests/cpu_paths.py --jobs $(JOBS) $(PYTEST_ARGS)

check: $(VENV)/.outrider-dev  ## lint, formatting, types and import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict -p outrider
	$(BIN)/lint-imports

docs: $(VENV)/.outrider-docs  ## build the documentation as a site into site/; a link that leads nowhere fails
	$(BIN)/python .ci/docs_site.py build/docs
	$(BIN)/zensical build --strict

package: $(VENV)/.outrider-dev  ## build the wheel and the sdist, check them, run a demo from the wheel
	rm -rf build dist
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python .ci/check_package.py dist

clean:  ## remove the virtual environment and every build output (not the models in the cache)
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache .cache
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp is written when its step is done, so that an interrupted set-up starts again and a finished one does not.
$(VENV)/.created:
	@$(PYTHON) $(SUPPORTED) 2>/dev/null || { \
		echo "Outrider needs Python 3.11, 3.12 or 3.13, and $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing):" \
			"name another, e.g. make PYTHON=python3.12" >&2; exit 1; }
	@{ $(BIN)/python $(SUPPORTED) && $(BIN)/python -m pip --version; } >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)
	@touch $@

# torch goes in by itself, in the version the constraints name: the largest download, and nothing else repeats it.
$(VENV)/.outrider: $(VENV)/.created $(SETUP)
	$(PIP) "$$(grep '^torch==' constraints.txt)"
	$(PIP) --editable '.[cpu]'
	@touch $@

$(VENV)/.outrider-dev: $(VENV)/.outrider $(SETUP)
	$(PIP) --editable '.[dev]'
	@touch $@

$(VENV)/.outrider-docs: $(VENV)/.outrider $(SETUP)
	$(PIP) --editable '.[docs]'
	@touch $@
