# `make install`, `make demo` and `make test` install what they need; see scripts/setup.

SHELL := /bin/bash
CARGO ?= cargo
PREFIX ?= /usr/local

.PHONY: help setup build install dist test-dist test test-compat test-api demo demo-cluster bench bench-grid bench-probe bench-peers bench-cluster soak clean

help: ## Show the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 13

setup: ## Install what the tests need (Debian packages as root, cargo tools into .cache)
	scripts/setup test

build: ## Build the release binary target/release/forebay
	$(CARGO) build --locked --release --package forebay-cli

install: ## Build the binary and copy it to $(PREFIX)/bin, /usr/local/bin by default (as root)
	scripts/setup build
	$(MAKE) --no-print-directory build
	install -D -m 755 target/release/forebay $(DESTDIR)$(PREFIX)/bin/forebay

dist: ## Make a tarball, a deb, an rpm and a Python wheel in target/dist (several minutes)
	scripts/setup dist
	scripts/dist

test-dist: dist ## Install them in a fresh Debian, a container image and a Python environment, and run the demonstration (as root)
	scripts/setup demo
	scripts/test-dist

test: setup ## Run every check and test, the ones on real mounts included
	scripts/test

test-compat: ## Run tools that know Slurm or LSF on a grid: Nextflow, Snakemake, dask-jobqueue, Parsl, batchtools, submitit (5 minutes)
	scripts/setup build
	scripts/setup compat
	$(CARGO) build --locked --release --package forebay-cli
	scripts/test-compat

test-api: ## Test the REST API by its description, with a generated Python client and Schemathesis (about a minute)
	scripts/setup build
	$(CARGO) build --locked --release --package forebay-cli
	scripts/test-api

demo: ## Run the analytics demonstration: the 2013 New York flights, then a small mixed workload
	scripts/setup demo
	$(MAKE) --no-print-directory build
	target/release/forebay demo --report target/demo-report

demo-cluster: ## Run the demonstration of a cluster: four nodes on this machine, one of which is killed (as root)
	scripts/setup cluster
	$(MAKE) --no-print-directory build
	target/release/forebay demo --cluster --report target/demo-cluster-report

bench: ## Measure the mount against plain directories (as root, several minutes)
	scripts/setup test
	$(CARGO) build --locked --release --package forebay-cli --package forebay-bench
	target/release/forebay-bench

bench-grid: ## Measure the grid, with Slurm beside it (as root, about 20 minutes)
	scripts/setup bench
	$(CARGO) build --locked --release --package forebay-cli --package forebay-bench
	target/release/forebay-bench grid

bench-probe: ## Compare the probe of the workloads with fio (several minutes)
	scripts/setup bench
	$(CARGO) build --locked --release --package forebay-bench
	target/release/forebay-bench probe

bench-peers: ## Compare with XFS, ext4, mergerfs, MooseFS, GlusterFS and CephFS (as root, half an hour)
	scripts/setup peers
	$(CARGO) build --locked --release --package forebay-cli --package forebay-bench
	target/release/forebay-bench peers --output docs/benchmarks.md --json target/bench-peers.json $(PEERS_OPTIONS)

bench-cluster: ## Measure a cluster on this machine, with MooseFS, GlusterFS and CephFS beside it (as root, half an hour)
	scripts/setup peers
	scripts/setup cluster
	$(CARGO) build --locked --release --package forebay-cli --package forebay-bench
	target/release/forebay-bench cluster --output docs/benchmarks.md --json target/bench-cluster.json $(CLUSTER_OPTIONS)

soak: setup build ## Crash and exerciser tests, and the grid under kill -9, for hours
	scripts/soak

clean: ## Remove everything built and downloaded
	$(CARGO) clean
	rm -rf .cache
