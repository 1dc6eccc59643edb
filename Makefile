PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow bench
.DELETE_ON_ERROR:

demo: .venv/demo
	$(BIN)/python -m train configs/quickstart.toml
	$(BIN)/python -m analysis runs/quickstart

test: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -n auto --dist loadfile

test-slow: .venv/dev
	$(BIN)/python -m pytest -q -m slow --ignore=tests/benchmarks

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/demo: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e .
	touch $@

.venv/dev: .venv/demo
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

bench: .venv/dev
	$(BIN)/python -m pytest -q -m slow --benchmark-enable tests/benchmarks
