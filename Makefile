# Two commands: `make bench` weighs the shipped kernels here, `make test` checks everything.
# `make builds` weighs what is only built, for GPUs that need not be here: minutes.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: bench builds test test-gpu lint types clean

bench: .venv/ready
	$(BIN)/steelyard run suites -k "not cuda and not fusion"

builds: .venv/ready
	$(BIN)/steelyard run suites -k "cuda or fusion" --blocks 2

test: .venv/ready
	$(BIN)/pytest

test-gpu: .venv/ready
	$(BIN)/pytest tests/test_*gpu*.py

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
