SHELL := /bin/bash
.DEFAULT_GOAL := help

PYTHON ?= python3
PYTHONS ?= python3.11 python3.12 python3.13
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
SLOW := spark or kafka or e2e or store
# Most brokers and applications of these tests live for seconds: what HotSpot compiles a second time,
# at its highest level, costs them more than it gives (a broker starts with 2.3 s of CPU, not 4.0 s).
QUICK_JVMS := JDK_JAVA_OPTIONS=-XX:TieredStopAtLevel=1

export VIRTUAL_ENV := $(CURDIR)/$(VENV)
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help setup jdk jars test-jars helm chromium demo dev fast test pythons sample cluster store drills check docs lock bench clean

help: ## Say what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) jdk jars ## Install everything: .venv, JDK (Debian, Ubuntu as root), jars

$(INSTALLED): pyproject.toml constraints.txt scripts/make_venv.sh
	@scripts/make_venv.sh "$(PYTHON)" $(VENV)
	@# pyspark comes as source: without isolation it is built with the setuptools and wheel named here.
	$(BIN)/python -m pip install -q -c constraints.txt hatchling editables setuptools wheel
	$(BIN)/python -m pip install -q -c constraints.txt --no-build-isolation -e '.[dev]'
	@touch $@

jdk: $(INSTALLED)
	@scripts/ensure_jdk.sh $(BIN)/python

jars: $(INSTALLED) jdk ## Fetch and verify the jars of Spark and of the local Kafka; build the companion
	@$(BIN)/python -m spark_resources.fetch_jars spark
	@$(BIN)/python -m spark_resources.fetch_jars kafka
	@$(BIN)/python -m spark_resources.companion

test-jars: jars
	@$(BIN)/python -m spark_resources.fetch_jars kafka43
	@$(BIN)/python -m spark_resources.fetch_jars kafka39
	@$(BIN)/python -m spark_resources.fetch_jars registry

helm:
	@scripts/build_helm.sh

chromium: $(INSTALLED)
	@scripts/ensure_chromium.sh $(BIN)/python

demo: setup ## Run a broker, an application and its backup; two minutes of orders
	$(BIN)/python -m examples.demo

dev: setup ## Open the Dagster UI on 127.0.0.1:3000 on a live example, with its daemon
	$(BIN)/python -m examples.demo.ui

fast: setup ## Run the pure tests: no broker, no Spark
	$(BIN)/python -m pytest -q -n 2 -m "not ($(SLOW))"

test: fast test-jars helm ## Run the tests: the pure ones, then those with brokers and Spark
	$(QUICK_JVMS) $(BIN)/python -m pytest -q -n 2 --dist loadfile -m "($(SLOW)) and not drill"

pythons: ## Set up and run the pure tests with each of PYTHONS, in .venv-3.11, .venv-3.12, ...
	@set -e; for python in $(PYTHONS); do \
	  version=$$($$python -c 'import sys; print("%d.%d" % sys.version_info[:2])'); \
	  echo "== Python $$version"; \
	  $(MAKE) --no-print-directory fast PYTHON=$$python VENV=.venv-$$version; \
	done

sample: setup test-jars chromium ## Run one drill of each kind, about ten minutes
	$(BIN)/python -m pytest -q -m "sample" --durations=0 --durations-min=5

cluster: setup test-jars ## Run fidelity, tamper and secrets with Spark on a standalone cluster
	$(BIN)/python -m pytest -q --on-cluster -m "cluster and not drill"

store: setup test-jars ## Run backups, their restores and tables with the warehouse in an S3 server
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --on-store -m "on_store and not drill"

drills: setup test-jars chromium ## Run the tests of minutes, over an hour: kills, exact cuts, restores, drills
	$(BIN)/python -m pytest -q -n 2 --dist loadfile -m "drill and not alone"
	$(BIN)/python -m pytest -q -m "drill and alone"
	$(BIN)/python -m pytest -q --on-cluster -m "drill and cluster"
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --on-store -m "drill and (on_store or store)"

check: setup docs ## Run ruff, pyright and dg check defs, and build the docs site
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/dg check defs

docs: setup ## Build the docs site into build/docs; a broken link fails
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock: setup ## Write the hashes of all packages of the image, after a change of dependencies
	$(BIN)/python -m scripts.release lock

bench: setup ## Run the benchmarks; results go to bench/results
	$(BIN)/python -m bench

clean: ## Remove what the demo and the tools made; .venv and .jars stay
	rm -rf .demo .tmp_dagster_home_* .pytest_cache .ruff_cache .hypothesis build dist *.egg-info
	rm -rf spark-warehouse metastore_db derby.log
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +
