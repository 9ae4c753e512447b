# Every target does its own set-up (scripts/setup.sh), from nothing but Python >= 3.11 and make.
# PYTHON=python3.12 chooses the interpreter; ARGS=... goes to the program that a target runs.

PYTHON_BIN := $(CURDIR)/.venv/bin/python
BIN := $(CURDIR)/.venv/bin

# The root comes first: packages of other people are named `tasks` and `models`, too.
export PYTHONPATH := $(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))
export PYTHON

# One test process more than there are CPUs: scenarios mostly wait. Each has its own Postgres and Valkey, so more
# than four only compete.
WORKERS ?= $(shell n=$$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2); n=$$((n + 1)); [ $$n -gt 4 ] && n=4; echo $$n)

.DEFAULT_GOAL := help
.PHONY: help setup demo up chat test check lint types arch docs bench peers bench-db mutants chaos lock clean

help:  ## explain the targets
	@echo "make <target>, each with its own set-up:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1	\2/p' $(MAKEFILE_LIST) | expand -t 14

setup:  ## make .venv from requirements.lock (every target does this)
	@scripts/setup.sh

demo: setup  ## a chat with tools, streamed from two workers, one of which is killed
	@$(PYTHON_BIN) scripts/demo.py $(ARGS)

up: setup  ## servers, workers, beat and Flower, in the foreground
	@$(PYTHON_BIN) scripts/up.py $(ARGS)

chat: setup  ## talk to an agent in the terminal (ARGS=CHAT goes on with one)
	@$(PYTHON_BIN) scripts/chat.py $(ARGS)

test: setup  ## every test, on embedded Postgres and Valkey (ARGS="-k name")
	@$(PYTHON_BIN) -m pytest -n $(WORKERS) $(ARGS)

check: lint types arch test  ## lint, types, architecture, tests

lint: setup  ## ruff: rules and format
	@$(PYTHON_BIN) -m ruff check .
	@$(PYTHON_BIN) -m ruff format --check .

types: setup  ## mypy --strict
	@$(PYTHON_BIN) -m mypy

arch: setup  ## who may import whom
	@$(BIN)/lint-imports

docs: setup  ## write the generated parts of the documentation
	@$(PYTHON_BIN) scripts/docs.py $(ARGS)

bench-db: setup  ## the hot statements on 200,000 chats and 2,000,000 messages
	@$(PYTHON_BIN) scripts/bench_db.py $(ARGS)

bench: setup $(if $(wildcard .venv-peers),peers)  ## contenders side by side: bare SDK, bare and naive Celery, Rejoinder, its peers (ARGS="--against REV": another commit, too)
	@$(PYTHON_BIN) scripts/bench.py $(ARGS)

peers:  ## make .venv-peers from requirements-peers.lock: LangGraph and DBOS, for `make bench`
	@scripts/setup.sh peers

mutants: setup  ## break the code on purpose: some test must fail each time
	@$(PYTHON_BIN) scripts/mutants.py $(ARGS)

chaos: setup  ## a fleet under faults, then an audit (SECONDS=60 SEED=1 POOL=threads CHATS=40)
	@$(PYTHON_BIN) scripts/chaos.py --seconds $(or $(SECONDS),60) --seed $(or $(SEED),1) \
	    --pool $(or $(POOL),threads) --chats $(or $(CHATS),40) $(ARGS)

# Peers get our versions of what we have in common, so that it is not the SDK that is compared. All but one:
# what LangGraph depends on wants an older uuid-utils than we do.
LOCK := --universal --python-version 3.11 --generate-hashes --no-header --no-annotate
lock:  ## compute the lock files anew (needs uv)
	uv pip compile pyproject.toml --all-extras --group dev $(LOCK) -o requirements.lock
	sed -n '/^uuid-utils==/d; s/^\([^ ]*==[^ ]*\).*/\1/p' requirements.lock | \
	    uv pip compile --group peers --constraint - $(LOCK) -o requirements-peers.lock

clean:  ## remove .venv and .venv-peers, kept data and caches
	@rm -rf "$$(readlink -f .rejoinder/elsewhere 2>/dev/null)" .rejoinder
	@rm -rf .venv .venv-peers .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis dist build
