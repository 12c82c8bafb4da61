# Two commands: `make bench` weighs the shipped kernels here, `make test` checks everything.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: bench test lint types clean

bench: .venv/ready
	$(BIN)/steelyard run suites

test: .venv/ready
	$(BIN)/pytest

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/ready
	$(BIN)/mypy
	$(BIN)/pyright

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .benchmarks build dist
