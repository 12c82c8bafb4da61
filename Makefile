# Two commands: `make bench` measures the shipped kernels here in about a minute, in float32 at
# two sizes, and two builds; `make test` runs every quick test and a seventh of
# the slow ones, `make test-all` all but what judges by times of its own, which
# `make test-measuring` does on a machine that is free.
# `make builds` measures what is only built, for GPUs that need not be here: minutes.
# `make loops` measures loops of thousands of iterations, and their builds, on the CPU.
# `make products` measures products of matrices, convolutions, attention and BERT on the CPU.
# `make layouts` measures transposes, sums of columns and results of rows, also on a GPU.
# `make docs` builds the site into build/site, `make tables` writes the tables between markers
# of README.md and docs again, from the runs that they name.
# `make gpu` measures the shipped kernels, products, convolutions and attention on a GPU, and
# `make peers` other people's beside them; BERT is `steelyard run suites -k gpu_bert`.
PYTHON ?= python3
BIN := .venv/bin
# Python compiles what is imported, once for all processes: pip would compile everything.
export PYTHONDONTWRITEBYTECODE :=
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

# Says what is left out where PyTorch is not installed; it is not asked for: gigabytes.
PEERLESS = $(BIN)/python -c "import importlib.util as u; u.find_spec('torch') or print('torch is not in .venv: its kernels, the peers compiled by it and the cases of cuBLAS are left out')"

.PHONY: bench builds loops products layouts gpu peers test test-all test-measuring test-gpu lint types mypy pyright docs tables clean

bench: .venv/bench
	$(BIN)/steelyard run suites/adam.py suites/bias_layernorm.py suites/build.py suites/memory.py suites/softmax.py -k "not (gpu_ or cuda or noisy or float16 or =1600 or =5140 or =786432 or =5263360 or kernel=adam or kernel=triad or kernel=scale or kernel=empty or kernel=copy)"

builds: .venv/ready
	$(BIN)/steelyard run suites -k "cuda or fusion" --blocks 2

products: .venv/ready
	$(BIN)/steelyard run suites -k "(products or convolutions or attentions or bert) and not gpu_"

loops: .venv/ready
	$(BIN)/steelyard run suites -k "noisy and not gpu_ and not cuda" --blocks 2

layouts: .venv/ready
	$(BIN)/steelyard run suites/layouts.py

gpu: .venv/gpu
	@$(PEERLESS)
	$(BIN)/steelyard run suites/attention.py suites/convolutions.py suites/dispatch.py suites/gpu.py suites/inputs.py suites/probes.py suites/products.py -k gpu_

peers: .venv/gpu
	@$(PEERLESS)
	$(BIN)/steelyard run suites/peers.py --relative-to impl=ours

test: .venv/ready
	$(BIN)/pytest -n logical --dist worksteal --turns

test-all: .venv/ready
	$(BIN)/pytest -n logical --dist worksteal

test-measuring: .venv/ready
	$(BIN)/pytest -m measuring

test-gpu: .venv/gpu
	@$(PEERLESS)
	$(BIN)/pytest tests/test_*gpu*.py

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: mypy pyright

mypy pyright: .venv/ready
	$(BIN)/$@

docs: .venv/docs
	$(BIN)/sphinx-build --fail-on-warning --quiet docs build/site

tables: .venv/ready
	$(BIN)/python ci/tables.py

.venv/bench: pyproject.toml
	$(PYTHON) -m venv .venv
	$(INSTALL) -e .
	touch $@

.venv/ready: .venv/bench
	$(INSTALL) -e '.[dev]'
	touch $@

.venv/docs: .venv/bench
	$(INSTALL) -e '.[docs]'
	touch $@

.venv/gpu: .venv/ready
	$(INSTALL) -e '.[dev,gpu]'
	touch $@

clean:
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .benchmarks build dist
