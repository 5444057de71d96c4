# Everything runs from the checkout: uv and the locked environment live in .uv/ and .venv/, nothing global is touched.
SHELL := /bin/bash
PYTHON ?= python3
UV := $(CURDIR)/.uv/bin/uv
RUN := $(UV) run --frozen --no-sync
# `setup` compiles ours and theirs once, so that every start is quick also where Python may not write its caches.
PARTS := crds planner fleet-client controller node-agent gateway simulator cli

.DEFAULT_GOAL := help
.PHONY: help setup up test check golden manifests verify version changelog release-check sim fuzz kube engines prometheus bench soak clean

help: ## list what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer must be on PATH as python3; got " + sys.version.split()[0])'
	@echo "Installing uv into .uv (once, some seconds)"
	@$(PYTHON) -m venv .uv && .uv/bin/pip install --quiet --disable-pip-version-check uv==0.13.9

setup: $(UV) ## install uv and the locked environment into the checkout
	@test -x .venv/bin/covey || echo "Installing the locked environment into .venv (once, up to a minute)"
	@$(UV) sync --frozen --quiet --compile-bytecode
	@.venv/bin/python -m compileall -q $(foreach part,$(PARTS),$(part)/src)

up: setup ## run Covey here with the smallest example and wait until it serves
	@exec $(CURDIR)/.venv/bin/covey up examples/01-one-model --wait

# Four at a time on two cores: most of a test's time is waiting for processes. A file stays together, so its engine is started once.
test: setup ## run every test
	@$(RUN) pytest -n 4 --dist loadfile --no-loadscope-reorder --cache-clear; code=$$?; \
	if [ $$code -eq 1 ]; then $(RUN) python tools/try_again.py; else exit $$code; fi

check: setup ## format, lint, types, borders, dependencies
	@$(RUN) ruff format --check .
	@$(RUN) ruff check .
	@$(RUN) shellcheck install.sh
	@$(RUN) basedpyright
	@$(RUN) lint-imports
	@for part in $(PARTS); do (cd $$part && $(RUN) deptry src) || exit 1; done

golden: setup ## refresh golden files; review them as a diff
	@$(RUN) pytest tests/golden --golden-refresh -q

manifests: setup ## write manifests/base anew from the chart (needs Go, or helm: HELM=helm)
	@PYTHONPATH=tests $(RUN) python tools/render_base.py $(or $(HELM),$$(PYTHONPATH=tests $(RUN) python -m testbed.kube helm))

verify: setup ## regenerate everything generated; fail on a dirty tree
	@$(RUN) python tools/generate.py
	@git diff --exit-code -- manifests docs/reference docs/spec || (echo "generated files were stale: commit the diff above" && exit 1)

version: setup ## say which version this is, or begin the next: VERSION=0.2.0
	@test -z "$(VERSION)" || $(RUN) python tools/changelog.py --begin "$(VERSION)"
	@$(RUN) python tools/version.py $(VERSION)
	@test -z "$(VERSION)" || { $(UV) lock --quiet && $(UV) sync --frozen --quiet && $(RUN) pytest tests/golden --golden-refresh -q; }

changelog: setup ## write this version's section of CHANGELOG.md from the fragments in changes/
	@$(RUN) python tools/changelog.py

release-check: setup ## build all packages and the chart into dist/, install them in an empty home, run them (one to two minutes)
	@PYTHONPATH=tests:tools $(RUN) python -m testbed.release

sim: setup ## simulate fleets with faults: SEEDS=300, those with groups GROUPS=300, or one and its story with SEED=123
	@PYTHONPATH=tests $(RUN) python -m sim $(if $(SEED),--seed $(SEED),$(if $(GROUPS),--groups $(GROUPS),--seeds $(or $(SEEDS),300)))

fuzz: setup ## throw damaged headers at the readers for SECONDS=300 (installs atheris beside the rest)
	@PYTHONPATH=tests $(UV) run --frozen --group fuzz python tools/fuzz_headers.py -max_total_time=$(or $(SECONDS),300)

kube: setup ## build the Kubernetes control plane and the tools that tests use, once, into the tests' cache (needs Go)
	@echo "Building a Kubernetes control plane, helm and kstatus unless they are cached (once, eight minutes)"
	@PYTHONPATH=tests $(RUN) python -m testbed.kube build

engines: setup ## build llama-cpp-python for the tests of `LlamaCpp`, once, into the tests' cache (needs a C++ compiler)
	@echo "Building llama-cpp-python unless it is cached (once, five minutes)"
	@PYTHONPATH=tests $(RUN) python -m kit.real_engines

prometheus: setup ## unpack Debian's Prometheus for the test of dashboard and alerts, once, into the tests' cache
	@PYTHONPATH=tests $(RUN) python -m testbed.prometheus

bench: setup ## run all benchmarks, or one with ONLY=peers, and write docs/reference/benchmarks.md
	@PYTHONPATH=bench:tests $(RUN) python -m whole $(addprefix --only ,$(ONLY))

soak: setup ## two fleets under traffic, edits and faults for MINUTES=30, or again with SEED=123; the report is build/soak.md
	@PYTHONPATH=tests $(RUN) python -m soak --minutes $(or $(MINUTES),30) $(addprefix --seed ,$(SEED))

clean: ## remove what setup made
	@rm -rf .venv .uv
