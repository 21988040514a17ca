# Everything runs in .venv, which each command sets up as far as it needs it: a fresh Debian or Ubuntu machine needs
# no more than Python and make. The tests take redis-server and PostgreSQL from the distribution's packages where they
# are missing.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Those that are supported.
PYTHONS := 3.11 3.12 3.13

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

.PHONY: help
help:
	@echo 'make demo        run the gateway of examples/ in front of a provider stand-in (ARGS="--redis URL --recording PATH")'
	@echo 'make test        run the tests (ARGS="-k name")'
	@echo 'make test-long   run them with ten times as many random examples, storms of a minute, and make test-pythons'
	@echo 'make test-pythons  run a light part of them on each other Python that is supported and there'
	@echo 'make test-pythons-brief  the same within a minute, as on every change'
	@echo 'make bench       measure earmark beside other libraries (ARGS="--quick", "--markdown", or what to measure)'
	@echo 'make litellm     prepare the environment in which the LiteLLM hook is tested by make test'
	@echo 'make lint        run ruff, mypy and pyright'
	@echo 'make docs        build the site into build/site, strictly'
	@echo 'make build       build sdist and wheel, install the wheel alone, import every public name, run the quickstart'
	@echo 'make clean       remove .venv and all caches'

# One stamp per group of dependencies, older than pyproject.toml when the group is to be installed anew.
$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "earmark needs Python 3.11 or later, which $(PYTHON) is not: make PYTHON=python3.12 …" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
		{ echo "$(PYTHON) cannot make a virtual environment: sudo apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	@touch $@

install = $(BIN)/python -m pip install --quiet --editable . --group

$(VENV)/.group-%: pyproject.toml $(VENV)/.created
	$(install) $*
	@touch $@

# dev has the others in it.
$(VENV)/.group-dev: pyproject.toml $(VENV)/.created
	$(install) dev
	@touch $(VENV)/.group-demo $(VENV)/.group-docs $(VENV)/.group-test $@

.PRECIOUS: $(VENV)/.group-%

.PHONY: demo
demo: $(VENV)/.group-demo
	@$(BIN)/python examples/gateway_demo.py $(ARGS)

# What takes no time where it is there already.
.PHONY: redis-server
redis-server:
	@sh tests/redis-server.sh

.PHONY: postgresql
postgresql:
	@sh tests/postgresql.sh

# worksteal: a long random test keeps one worker busy while the others take all the rest. Many tests wait for servers, hence
# half as many workers again as there are processors.
.PHONY: test
test: $(VENV)/.group-test redis-server postgresql
	$(BIN)/python -m pytest -n $$(($$(nproc) * 3 / 2)) --dist worksteal $(ARGS)

# LiteLLM's proxy pins much that nobody else needs, and takes minutes to install: where it is missing, the tests of its
# hook are skipped, and the closing report of `make test` says so.
.PHONY: litellm
litellm: $(VENV)/litellm/.installed

$(VENV)/litellm/.installed: tests/litellm/requirements.txt $(VENV)/.created
	$(PYTHON) -m venv $(VENV)/litellm
	$(VENV)/litellm/bin/python -m pip install --quiet --requirement $<
	@touch $@

# What the benchmarks compare with, each by itself, so that one which cannot be had here keeps nobody away. uvloop and
# hiredis are apart: what they change is measured with and without.
install-peers = grep -v '^\#' $(2) | while read -r library; do \
		$(1) -m pip install --quiet "$$library" || echo "absent: $$library" >&2; \
	done; \
	$(1) -m pip install --quiet --target $(@D)/fast --upgrade uvloop==0.23.0 hiredis==3.5.0 || \
		echo 'absent: uvloop and hiredis' >&2

$(VENV)/bench/.installed: tests/benchmarks/requirements.txt pyproject.toml $(VENV)/.created
	$(PYTHON) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --editable .
	@$(call install-peers,$(@D)/bin/python,$<)
	@touch $@

# What needs Python 3.12 or later, on the latest that is on the machine.
$(VENV)/bench-newer/.installed: tests/benchmarks/requirements-newer.txt $(VENV)/.created
	@newer=$$($(BIN)/python -c 'from tests.pythons import python; print(python("3.13") or python("3.12") or exit(1))') || \
		{ echo "absent: $$(grep -v '^\#' $< | head -n 1), which needs Python 3.12 or later" >&2; exit 1; }; \
		$$newer -m venv $(@D)
	@$(call install-peers,$(@D)/bin/python,$<)
	@touch $@

# PostgreSQL is for the ledger alone.
.PHONY: bench
bench: $(VENV)/.group-test $(VENV)/bench/.installed redis-server
	@$(MAKE) --no-print-directory postgresql || echo 'absent: PostgreSQL' >&2
	@$(MAKE) --no-print-directory litellm || echo 'absent: LiteLLM' >&2
	@-$(MAKE) --no-print-directory $(VENV)/bench-newer/.installed
	@$(BIN)/python -m tests.benchmarks $(ARGS)

# The other Pythons that are supported, as far as they are on this machine: memory, streams and the contract.
.PHONY: test-pythons
test-pythons: $(VENV)/.group-test
	$(BIN)/python tests/pythons.py $(VENV)/pythons $(PYTHONS)

# What every change waits for.
.PHONY: test-pythons-brief
test-pythons-brief: $(VENV)/.group-test
	$(BIN)/python tests/pythons.py --brief $(VENV)/pythons $(PYTHONS)

.PHONY: test-long
test-long: export EARMARK_PROFILE := long
test-long: test test-pythons

.PHONY: lint
lint: $(VENV)/.group-dev
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/pyright --warnings

# Strict is about links alone; what griffe says of a docstring is an error as well.
.PHONY: docs
docs: $(VENV)/.group-docs
	$(BIN)/python docs/gather.py build/docs
	$(BIN)/zensical build --strict --clean 2>build/docs.log || { cat build/docs.log; exit 1; }
	@! grep '^griffe:' build/docs.log

# A venv of its own has the wheel and its run-time dependencies, and nothing that only the tests install. There every
# public name that needs no extra can be had, and the first snippet of the README does what it says.
.PHONY: build
build: $(VENV)/.group-test
	rm -rf build/venv dist
	$(BIN)/hatchling build
	$(PYTHON) -m venv build/venv
	build/venv/bin/python -m pip install --quiet dist/*.whl
	cp tests/installed.py README.md build
	cd build && venv/bin/python -I -W error installed.py README.md

.PHONY: clean
clean:
	rm -rf $(VENV) build dist .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache
