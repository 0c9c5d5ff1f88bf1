# `make demo` and `make test` do all the set-up: they need Python, git, make and the package index that pip knows.
#
#   make demo                   a whole run on a real base: lock, plan, build, verify, reproduce
#   make demo PLATFORMS=all     the same for a two-platform index (fetches a second wheel)
#   make bases                  the stand-in bases of b300-vllm, gb200-dynamo and mi355x-rocm (fetches three wheels)
#   make test                   the tests; those that need root or other programs skip with a reason
#   make test-integration       the tests with other people's programs; a missing one is a failure
#   make test-all               lint, types, and both
#   make lint                   ruff and mypy
#   make bench                  benchmarks/overlay_build.py
#   make clean                  removes build/, the virtual environment and caches (never the wheel cache)
#
# PYTHON=python3.13 picks the interpreter, PYTEST_ARGS=… replaces the arguments of pytest.

PYTHON ?= python3
VENV ?= .venv
PLATFORMS ?=
NAMES ?=
PYTEST_ARGS ?= -n auto --dist loadscope

# Another interpreter gives other file names, so the environment is made again.
VERSION := $(shell $(PYTHON) -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])')
BIN := $(VENV)/bin
RUN_READY := $(VENV)/.ready-$(VERSION)
TEST_READY := $(VENV)/.ready-$(VERSION)-test
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input

.PHONY: demo bases test test-integration test-all lint bench clean
.DELETE_ON_ERROR:

$(RUN_READY): pyproject.toml
	$(PYTHON) -m venv --clear $(VENV)
	$(PIP) --editable .
	@touch $@

$(TEST_READY): $(RUN_READY)
	$(PIP) --editable '.[test]'
	@touch $@

demo: $(RUN_READY)
	$(BIN)/imagebuild demo $(if $(filter all,$(PLATFORMS)),--platform linux/amd64 --platform linux/arm64)

bases: $(RUN_READY)
	$(BIN)/python -m imagebuild.testing.bases $(NAMES)

test: $(TEST_READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS) -m "not integration"

test-integration: $(TEST_READY)
	IMAGEBUILD_REQUIRE_TOOLS=1 $(BIN)/python -m pytest $(PYTEST_ARGS) --no-loadscope-reorder -m integration

test-all: lint test test-integration

lint: $(TEST_READY)
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m mypy

bench: $(TEST_READY)
	$(BIN)/python benchmarks/overlay_build.py

clean:
	rm -rf build dist $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
