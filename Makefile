# Everything sets itself up: a .venv beside this file, made with nothing but Python and pip.
PYTHON ?= python3
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE :=  # many tests start Python anew, which then need not compile all modules

.PHONY: demo test quick check docs clean

demo: .venv/demo.stamp  ## a CLIP learns 25 traffic signs by five methods; a page shows what each forgot
	$(BIN)/retouch demo --out runs/demo

test: .venv/test.stamp  ## all tests, the checks of `make check` among them
	$(BIN)/python -m pytest

quick: .venv/test.stamp  ## the quick tests, in a few minutes
	$(BIN)/python -m pytest -m "not slow"

check: .venv/test.stamp  ## lint, format and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/docs.stamp  ## the documents and the API reference as a site, in site/; a broken link is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "retouch needs Python 3.11 or newer; this is $$($(PYTHON) --version). Try: make PYTHON=python3.11 …"; exit 1; }
	$(PYTHON) -m venv .venv

.venv/demo.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --editable .
	touch $@

.venv/test.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --editable '.[test]'
	touch $@

.venv/docs.stamp: pyproject.toml | .venv/bin/python
	$(BIN)/pip install --quiet --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv runs site
