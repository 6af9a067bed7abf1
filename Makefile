# Everything a newcomer needs: `make demo`, `make test`. Both install into .venv on their first run.
#
#   PYTHON      interpreter of a new .venv (3.10 to 3.13)
#   TORCH_SPEC  what pip installs first; empty where torch is already there. For a small CPU build:
#               TORCH_SPEC="torch==2.13.0 --index-url <the index of CPU builds>"
#   VENV_FLAGS  flags of a new .venv, such as --system-site-packages
#   ARGS        what follows `drivert demo`, such as ARGS="--bag path/to/bag"
#   PYTEST_ARGS what follows pytest, such as PYTEST_ARGS="test/core -k voxel"
PYTHON ?= python3
TORCH_SPEC ?= torch==2.13.0
VENV ?= .venv
VENV_FLAGS ?=
ARGS ?=
PYTEST_ARGS ?=

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules --no-print-directory

BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
DEFINITIONS := $(wildcard interfaces/*.txt interfaces/*.py interfaces/*/package.xml \
	interfaces/*/CMakeLists.txt interfaces/*/msg/*.msg)

# A sourced ROS install or another environment must not leak into .venv: its libraries have other ABIs.
unexport PYTHONPATH PYTHONHOME AMENT_PREFIX_PATH CMAKE_PREFIX_PATH COLCON_PREFIX_PATH
unexport _ROS_WHEELS_BOOTSTRAP_COMPLETE RMW_IMPLEMENTATION
export LD_LIBRARY_PATH := $(shell echo "$${LD_LIBRARY_PATH:-}" | tr : '\n' | sed '/^\/opt\/ros\//d' | paste -sd:)

# $(call step,number,what it does,command): one line a step; the output is shown only on failure.
define step
@printf '[%s/5] %s ... ' '$(1)' '$(2)'; begin=$$SECONDS; log=$$(mktemp); \
if ( $(3) ) >"$$log" 2>&1; then echo "$$((SECONDS - begin)) s"; rm -f "$$log"; \
else echo failed; tail -n 40 "$$log"; rm -f "$$log"; exit 1; fi
endef

.PHONY: help install demo test lint clean

help: ## Show this list
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18
	@echo '  Variables: PYTHON TORCH_SPEC VENV_FLAGS ARGS PYTEST_ARGS (see the top of the Makefile)'

install: $(STAMP)/interfaces $(STAMP)/package ## Create .venv with ROS 2, torch and this package
	@$(if $(filter install,$(MAKECMDGOALS)),echo 'Ready in $(VENV). Next: make demo',:)

demo: install ## Simulate a drive, run the nodes on it, render what they saw
	@$(BIN)/drivert demo $(ARGS)

# OpenVDB's validator, which some tests ask; those skip where it is absent. Only the download may
# hang, so only it has a time limit: a package is never left half unpacked.
define validator
@if ! command -v nanovdb_validate && command -v apt-get && [ "$$(id -u)" = 0 ]; then \
	get='apt-get install --yes --no-install-recommends'; export DEBIAN_FRONTEND=noninteractive; \
	timeout 60 sh -c "$$get --download-only libnanovdb-tools || \
		{ apt-get update && $$get --download-only libnanovdb-tools; }" && \
	$$get --no-download libnanovdb-tools || true; \
fi >/dev/null 2>&1 </dev/null
endef

test: install ## Run all tests
	$(validator)
ifeq ($(strip $(PYTEST_ARGS)),)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --dist loadfile -m "not nodes"
	@$(BIN)/python -m pytest -m nodes
else
	@$(BIN)/python -m pytest $(PYTEST_ARGS)
endif

lint: install ## Check style and types
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

clean: ## Remove .venv and build folders
	rm -rf $(VENV) build install log *.egg-info .pytest_cache .mypy_cache .ruff_cache

$(STAMP)/venv:
	@$(PYTHON) requirements/check.py
	$(call step,1,New environment $(VENV) with $(shell $(PYTHON) --version),\
		$(PYTHON) -m venv $(VENV_FLAGS) $(VENV) && touch $(VENV)/COLCON_IGNORE && mkdir -p $(STAMP))
	@touch $@

$(STAMP)/torch: $(STAMP)/venv
	$(call step,2,$(if $(TORCH_SPEC),Install $(firstword $(TORCH_SPEC)),Keep the torch that is there),\
		$(if $(TORCH_SPEC),$(PIP) install $(TORCH_SPEC),$(BIN)/python -c "import torch"))
	@touch $@

$(STAMP)/requirements: $(STAMP)/torch $(wildcard requirements/*.txt)
	$(call step,3,Install ROS 2 and other requirements,\
		$(PIP) install $(foreach f,$(wildcard requirements/*.txt),-r $(f)))
	@touch $@

$(STAMP)/interfaces: $(STAMP)/requirements $(DEFINITIONS)
	$(call step,4,Generate message packages (about a minute),$(BIN)/python interfaces/build.py)
	@touch $@

$(STAMP)/package: $(STAMP)/requirements setup.py setup.cfg pyproject.toml
	$(call step,5,Install this package in place,\
		$(PIP) install --no-deps --no-build-isolation --editable .)
	@touch $@
