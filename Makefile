# The entry points. `make` alone lists them.

# SHELL=1 is a parameter of demo; make's own variable of that name must stay what it is.
ifeq ($(origin SHELL),command line)
CONSOLE := $(filter-out 0,$(SHELL))
override SHELL := /bin/bash
else
SHELL := /bin/bash
endif
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
.PHONY: help setup tools build demo test unit e2e lint perf clean

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/podvirt
TOOLS := $(shell awk -v c='$(CACHE)' '{printf "%s/tools/%s-%s/bin:", c, $$1, $$2}' .config/cargo-tools)
export PATH := $(TOOLS)$(PATH)
NEXTEST := cargo nextest run --locked $(if $(CI),--profile ci)
GUESTS := package(podvirt-e2e) and kind(test)

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what building and testing need (root, Debian 12; Debian packages, root file system, guests)
	@e2e/setup

tools: # cargo tools of lint and test
	@e2e/setup tools

build: ## the release binaries, in target/release
	cargo build --release --locked --workspace --bins

demo: setup build ## a VM on a pod's sockets, without privilege: 3 minutes; SHELL=1 leaves you on its console
	@e2e/demo $(if $(CONSOLE),--console)

test: tools build ## unit tests and the quick end-to-end set: what CI runs
	cargo test --quiet --locked --workspace --doc
	e2e/jail $(NEXTEST) --workspace -E 'not ($(GUESTS) and test(/^long_/))'

unit: ## unit, property and virtual-time tests; needs no root
	@command -v cargo-nextest >/dev/null || { echo "no cargo-nextest: run make tools" >&2; exit 1; }
	$(NEXTEST) --workspace -E 'not ($(GUESTS))' $(FILTER)

e2e: tools build ## end-to-end tests with guests; FILTER=name picks
	e2e/jail $(NEXTEST) -p podvirt-e2e -E '$(GUESTS)' $(FILTER)

lint: ## formatting, clippy, documentation, licences and sources of dependencies
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --workspace --no-deps
	@command -v cargo-deny >/dev/null || { echo "no cargo-deny: run make tools" >&2; exit 1; }
	cargo deny --locked check --hide-inclusion-graph licenses bans sources
	for f in $$(grep -rlE '^#!/bin/(ba)?sh' .ci e2e --include='*' --exclude-dir=target); do bash -n "$$f"; done

perf: setup build ## throughput and cost of netd and its peers, side by side; ARGS=--quick and others
	e2e/jail $(or $(CARGO_TARGET_DIR),target)/release/perf run $(ARGS)

clean: ## what was built here, and what the test bed no longer uses
	cargo clean
	@e2e/prune
