# Every path here is relative, because a clone's path may hold spaces; run make from the root of the clone.
# Needs Python 3.11 or newer with its venv module, and nothing else: `make run PYTHON=python3.12` picks another one.
PYTHON ?= python3
BIN := .venv/bin
DECLARED := pyproject.toml constraints.txt
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable

.PHONY: run test check bench clean

# Installs, then tells the story of the whole thing in ten seconds: no key, no network.
run: .venv/.installed
	@$(BIN)/steerway demo

# The whole suite. The script is run itself, never `python -m pytest`, which would put the clone's folders on the path.
test: .venv/.installed-test
	$(BIN)/pytest

# Style, types, layers, and the built wheel tried from an empty directory.
check: .venv/.installed-check
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/python tests/support/wheel_smoke.py

# Every question of bench/, each as a ratio to a raw limit measured in the same run.
bench: .venv/.installed-bench
	PYTHONPATH=tests $(BIN)/python bench/run.py

# Removes what make, the build and the tools left behind, the virtual environment included.
clean:
	rm -rf .venv build dist steerway.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A stamp stands for "this set of extras is installed as declared now"; it is older than a changed declaration.
.venv/.installed: $(DECLARED) | $(BIN)/python
	@echo "Installing steerway into .venv"
	@$(INSTALL) .
	@touch $@

.venv/.installed-test: $(DECLARED) | $(BIN)/python
	@echo "Installing steerway and its test tools into .venv"
	@$(INSTALL) ".[test]"
	@touch $@

.venv/.installed-check: $(DECLARED) | $(BIN)/python
	@echo "Installing steerway, its test tools and its checkers into .venv"
	@$(INSTALL) ".[test,check]"
	@touch $@

.venv/.installed-bench: $(DECLARED) | $(BIN)/python
	@echo "Installing steerway and its measuring tools into .venv"
	@$(INSTALL) ".[bench]"
	@touch $@

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Steerway needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	@echo "Creating .venv"
	@$(PYTHON) -m venv .venv
