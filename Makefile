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
.PHONY: help setup packages tools build deb demo test unit fuzz soak e2e lint perf perf-crowds perf-bindings perf-migration bench clean conformance examples upgrade admission cluster-up cluster-sync cluster-down kubectl perf-tenants perf-scale perf-storage storage

CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/podvirt
TOOLS := $(shell awk -v c='$(CACHE)' '{printf "%s/tools/%s-%s/bin:", c, $$1, $$2}' .config/cargo-tools .config/lint-tools .config/bench-tools .config/deb-tools)
export PATH := $(TOOLS)$(PATH)
NEXTEST := cargo nextest run --locked $(if $(CI),--profile ci)
# Tests with guests on this machine, and tests on the cluster. FILTER picks by name.
CLUSTER := package(podvirt-e2e) and binary(/^cluster_/)
GUESTS := package(podvirt-e2e) and kind(test) and not ($(CLUSTER))
export PROFILE ?= release
BUILT = $(abspath $(or $(CARGO_TARGET_DIR),target))
# Where the test bed finds this project's programs.
export PODVIRT_BIN ?= $(BUILT)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: ## install what building and testing need (root, Debian 12; Debian packages, root file system, guests)
	@e2e/setup

# What compiling and the test bed need of Debian. Linking would miss it after a quarter of an hour.
packages:
	@e2e/setup packages

tools: # cargo tools of lint and test
	@e2e/setup tools; e2e/setup tools lint-tools

BUILD = cargo build --profile $(PROFILE) --locked --bins

build: packages ## the binaries, in target/release; PROFILE=dev: in target/debug
	$(BUILD) --workspace

MAN := target/man

deb: ## netd as a Debian package, target/debian/netd_*.deb; PROFILE=dev
	@e2e/setup tools deb-tools
	$(BUILD) -p netd -p netctl
	rm -rf $(MAN); mkdir -p $(MAN)
	$(PODVIRT_BIN)/netd --man $(MAN); $(PODVIRT_BIN)/netctl man $(MAN)
	cargo deb --no-build --locked --profile $(PROFILE) -p netd

demo: ## a VM on a pod's sockets, without privilege: 40 s, 5 to 15 minutes the first time; SHELL=1 leaves you on its console
	@e2e/setup demo $(BUILD) -p netd -p netctl -p virt-launcher -p podvirt-bed-tools
	@e2e/demo $(if $(CONSOLE),--console)

# Unoptimised and always of the whole workspace, so that nothing is compiled twice, and with the checks that release builds
# leave out.
test: PROFILE := dev
test: packages ## unit tests and the quick end-to-end set: what CI runs
	@e2e/gate

unit: ## unit, property and virtual-time tests; needs no root
	@command -v cargo-nextest >/dev/null || { echo "no cargo-nextest: run make tools" >&2; exit 1; }
	$(NEXTEST) --workspace -E 'not ($(GUESTS)) and not ($(CLUSTER))' $(FILTER)

# bash counts in a variable of that name.
fuzz: ## fuzz targets of netd under libFuzzer; TARGET=ring picks, SECONDS=60 each
	@SECONDS_EACH=$(or $(filter-out environment,$(SECONDS)),60) fuzz/run $(TARGET)

soak: tools ## netd under mixed load with frontends that come and go; MINUTES=30
	SOAK_MINUTES=$(or $(MINUTES),30) e2e/jail cargo test --locked -p netd --test soak -- --nocapture nothing_grows

# Whether FILTER leaves any test of a set.
some = cargo nextest list --locked -p podvirt-e2e -T oneline -E '$(1)' $(FILTER) | grep -q .

e2e: tools build ## end-to-end tests with guests and on the cluster; FILTER=name picks
	@$(call some,($(GUESTS)) or ($(CLUSTER))) || { echo "there is no test $(FILTER)" >&2; exit 1; }
	@! $(call some,$(GUESTS)) || e2e/jail $(NEXTEST) -p podvirt-e2e -E '$(GUESTS)' $(FILTER)
	@! $(call some,$(CLUSTER)) || e2e/cluster/cluster with $(NEXTEST) -p podvirt-e2e -E '$(CLUSTER)' $(FILTER)

lint: ## formatting, clippy, documentation, licences and sources of dependencies
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet --locked --workspace --no-deps
	@command -v cargo-deny >/dev/null || { echo "no cargo-deny: run make tools" >&2; exit 1; }
	cargo deny --locked check --hide-inclusion-graph licenses bans sources
	for f in $$(grep -rlE '^#!/bin/(ba)?sh' .ci .cargo e2e --exclude='*.rs' --exclude-dir=target); do bash -n "$$f"; done

cluster-up: packages ## a Kubernetes of two nodes on this machine; the first time builds its parts; STORAGE=1: with storage and CDI
	@e2e/cluster/cluster up
	@$(if $(filter-out 0,$(STORAGE)),e2e/cluster/storage up cdi)

cluster-sync: build cluster-up ## builds this project, puts it into the cluster and waits until it is ready; PROFILE=dev
	@e2e/cluster/sync

storage: cluster-sync ## the storage of the test bed: its driver's conformance, claims of every mode, DataVolumes, and machines on them: 20 minutes
	e2e/cluster/storage sanity
	@e2e/cluster/storage up cdi
	e2e/cluster/cluster with $(NEXTEST) -p podvirt-e2e -E 'binary(cluster_storage) or binary(cluster_life)'

admission: ## upstream's CustomResourceDefinitions and admission webhooks beside podvirt's: 1 minute, the first time 6; SHORT=1: 10 s; SEED=1
	cargo build --profile $(PROFILE) --locked -p virt-api --example reviews
	e2e/admission $(PODVIRT_BIN)/examples/reviews -seed=$(or $(SEED),1) -documents=$(if $(SHORT),500,5000)

examples: cluster-sync ## upstream's example manifests on the cluster, against the answers in e2e/conformance/examples.tsv: 3 minutes; UPDATE=1 writes new ones
	e2e/cluster/examples start >$(BUILT)/examples.tsv
	$(if $(UPDATE),cp $(BUILT)/examples.tsv e2e/conformance/examples.tsv,diff -u e2e/conformance/examples.tsv $(BUILT)/examples.tsv)

conformance: admission $(if $(FILTER)$(FOCUS),cluster-sync,examples) ## upstream's functional tests on the cluster: FILTER='sig-network && !SRIOV' by label, FOCUS=regex by name; OUT=target/conformance
	@$(if $(FILTER)$(FOCUS),,e2e/cluster/storage up cdi && )e2e/cluster/conformance $(or $(OUT),target/conformance) -ginkgo.label-filter='$(or $(FILTER),conformance)'$(if $(FOCUS), -ginkgo.focus='$(FOCUS)')

upgrade: $(if $(FROM),build cluster-up) ## an older podvirt in a fresh cluster, updated to this tree's under a machine that runs: FROM=COMMIT; PROFILE=dev
	e2e/cluster/upgrade $(or $(FROM),$(error FROM=COMMIT names the older podvirt))

kubectl: ## kubectl ARGS='...' on the cluster
	@e2e/cluster/cluster kubectl $(ARGS)

cluster-down: ## ends the cluster and removes all of it
	@e2e/cluster/cluster down

perf: setup build ## netd beside its peers: half an hour, writes docs/performance.md; QUICK=1: 5 minutes, writes nothing; ARGS=--help
	@# Compiled before the machine is expected to be quiet.
	cargo bench --quiet --locked -p netd --bench micro --no-run
	e2e/jail $(BUILT)/release/perf run $(if $(QUICK),--quick) $(ARGS)

perf-crowds: setup build ## what others have beside floods of short UDP flows, with netd and with passt: 15 minutes, writes perf/results/crowds.json and docs/performance.md; ARGS=--help
	e2e/jail $(BUILT)/release/perf crowds $(ARGS)

perf-bindings: setup build ## the bindings side by side on the cluster and in a mesh, and what it costs to ask the guest: 15 minutes, writes perf/results/bindings.json, asking.json and docs/performance.md; ARGS=--help
	e2e/jail $(BUILT)/release/perf asking
	e2e/cluster/cluster with $(BUILT)/release/perf bindings $(ARGS)
	$(BUILT)/release/perf report

perf-migration: setup build ## 100 live migrations with netd, 40 with passt, 40 with a tap: 12 minutes, writes perf/results/migration.json and docs/performance.md; ARGS=--help
	e2e/jail $(BUILT)/release/perf migration $(ARGS)
	$(BUILT)/release/perf report

perf-storage: setup build ## disks of machines beside plain QEMU, plugs, snapshots, exports: 50 minutes, writes perf/results/storage.json and docs/performance.md; QUICK=1: a look, writes nothing; ARGS=--help
	@e2e/setup packages fio
	e2e/cluster/cluster with $(BUILT)/release/perf storage $(if $(QUICK),--quick) $(ARGS)
	$(BUILT)/release/perf report

perf-scale: setup build ## 1, 4 and 16 machines of one node at once on the cluster, and what each costs: 20 minutes, writes perf/results/scale.json and docs/performance.md; ARGS=--help
	e2e/cluster/cluster with $(BUILT)/release/perf scale $(ARGS)
	$(BUILT)/release/perf report

perf-tenants: setup build ## what a machine keeps beside one that floods, with netd and with passt: 36 minutes, writes perf/results/tenants.json and docs/performance.md; QUICK=1: a look, writes nothing; ARGS=--help
	e2e/jail $(BUILT)/release/perf tenants $(if $(QUICK),--quick) $(ARGS)

bench: ## instructions of netd's inner loops under valgrind against those committed; UPDATE=1 writes new ones
	@e2e/setup tools bench-tools
	cargo run --quiet --release --locked -p podvirt-perf --bin perf -- instructions $(if $(UPDATE),--update)

clean: ## what was built here, and what the test bed no longer uses
	cargo clean
	@e2e/prune
