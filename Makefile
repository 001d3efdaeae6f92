# What people type in a clone. Every target is idempotent, and quiet when there is nothing to do.
#
#   make demo    from a bare clone: set up, serve, judge a program, hold a session, stop
#   make serve   set up and serve until Ctrl-C
#   make test    set up and run every test (also .ci/run)
#   make lint    ruff, mypy --strict, and the C with warnings as errors
#   make bench   the figures of this machine, beside their floors

SHELL := /bin/sh
export PYTHONSAFEPATH := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
NATIVE := runtimes/native
SPAWNER := $(NATIVE)/bin/stokehold-spawner
PACKAGES := build-essential python3 python3-venv
STAMP := $(VENV)/.stokehold-installed
SOURCES := $(wildcard $(NATIVE)/src/*.c $(NATIVE)/src/*.h) $(NATIVE)/Makefile

.PHONY: help setup packages preflight demo serve test lint bench clean

help:
	@sed -n 's/^#   //p' Makefile

# Said before anything is installed: a host that cannot run sandboxes should not wait for a download to learn it.
preflight:
	@command -v $(PYTHON) >/dev/null 2>&1 || exit 0; \
	if [ "$$(id -u)" != 0 ]; then \
	  command -v sudo >/dev/null 2>&1 || { echo "make: this needs root and there is no sudo; run it as root" >&2; exit 1; }; \
	  sudo -n true 2>/dev/null || [ -t 0 ] || { echo "make: this needs root and sudo asks for a password; run 'sudo -v' first" >&2; exit 1; }; \
	fi; \
	found=$$($(SUDO) $(PYTHON) -P guard/preflight.py) || { echo "This host cannot run sandboxes:" >&2; \
	  echo "$$found" | sed -n '/^MISSING/{p;n;p;}' >&2; exit 1; }

packages:
	@missing=""; for p in $(PACKAGES); do \
	  dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing$$missing"; \
	  $(SUDO) apt-get update -qq && \
	  DEBIAN_FRONTEND=noninteractive $(SUDO) apt-get install -y -qq --no-install-recommends $$missing >/dev/null; fi

$(VENV)/bin/python: | packages
	@echo "making $(VENV)"; $(PYTHON) -m venv $(VENV)

$(SPAWNER): $(SOURCES) | packages
	@echo "building the spawner"; $(MAKE) -s -C $(NATIVE)

$(STAMP): pyproject.toml $(VENV)/bin/python
	@echo "installing Python packages"; $(BIN)/python -m pip install -q -e '.[dev]' && touch $@

setup: packages $(SPAWNER) $(STAMP)

demo: preflight setup
	@$(BIN)/python -P -m stokehold demo

serve: preflight setup
	@$(BIN)/python -P -m stokehold serve

# The spawner with warnings as errors, its decoder under sanitizers, then every test. Needs root: the sandboxes are real.
test: preflight setup
	@$(MAKE) -s -C $(NATIVE) weak fuzz-check
	@$(SUDO) env PYTHONSAFEPATH=1 $(BIN)/python -P -m pytest -q $(PYTEST)

lint: setup
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict gateway warmpool runtimes layers guard loadtest stokehold
	@$(MAKE) -s -C $(NATIVE) all weak asan

bench: preflight setup
	@$(BIN)/python -P -m stokehold serve --detach >/dev/null
	$(BIN)/python -P -m stokehold bench floor
	$(BIN)/python -P -m stokehold bench run --http 1
	$(BIN)/python -P -m stokehold bench run --http 2
	$(BIN)/python -P -m stokehold bench run --http 3

clean:
	rm -rf $(VENV) build dist $(NATIVE)/bin
