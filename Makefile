# SPDX-License-Identifier: Apache-2.0
# The whole of Tidemark from a fresh clone: `make demo` or `make test`. Python >= 3.11, Java >= 17 and make are all it needs.
SHELL := /bin/sh
.DEFAULT_GOAL := help
unexport PIP_CONSTRAINT

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PARTS := lint types unit simulation charts contract integration chaos spark
NAME ?= produce
SEEDS ?= 1000
LIVES ?= 20

# Your own choice: make PYTHON=/path/to/python3.12 demo
PYTHON ?=
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
FIND_PYTHON = found=; for python in $(CANDIDATES); do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$python"; break; fi; \
	done

.PHONY: help demo test test-alerts test-cluster $(PARTS) soak explore bench stubs clean prerequisites

help: ## what there is
	@echo "make demo               the main job: real flights, a killed leader, Spark gets every row"
	@echo "make test               linters, types and all tests"
	@echo "make lint types unit simulation charts contract integration chaos spark    one part of them"
	@echo "make spark PYSPARK=4.0.5   tests/spark on that PySpark, installed beside the suite's; PYSPARK=all: the last of each series supported"
	@echo "make test-cluster       the chart and the images on a real Kubernetes cluster: KUBECONFIG=..., or one of its own from KUBE=DIRECTORY"
	@echo "make test-alerts        incidents caused for real on a local cluster, a real Prometheus, and the alerts that fire"
	@echo "make bench NAME=produce one benchmark: produce, latency, compare, durability, failover, controller, log, record, stalls,"
	@echo "                        many_clients, spark, scrape;"
	@echo "                        ARGS=\"--partitions 1000\" is passed on to it"
	@echo "make chaos MINUTES=10   rounds of kills, stops and cuts on real processes, every history checked"
	@echo "make soak SEEDS=5000    so many simulated worlds, on all cores; a failing one is shrunk and told as a story;"
	@echo "                        and LIVES=20 lives of a log on disk, each cut short after every one of its file operations"
	@echo "make explore            every interleaving of small scopes, some three hours by its bounds; MINUTES=5 for each at most; SCOPE=\"--batches 2 --crashes 1 ...\" one"
	@echo "make stubs              the gRPC stubs again, from proto/"
	@echo "make clean              remove what was made"

demo: $(READY) ## the main job
	@$(BIN)/python -m tidemark.local.demo

test: $(READY) ## everything
	@$(BIN)/python tests/run.py

test-cluster: $(READY) ## on a real Kubernetes cluster; ARGS="SCENARIO..." some of it
	@KUBE="$(or $(KUBE),../shared/kube)" $(BIN)/python -m tests.cluster $(ARGS)

ifdef MINUTES
chaos: $(READY) ## rounds of misfortune for so many minutes
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES)
endif

ifdef PYSPARK
spark: $(READY) ## tests/spark on another PySpark: a version, or all of those that are supported
	@$(BIN)/python -m tests.spark.versions $(PYSPARK) $(if $(ARGS),-- $(ARGS))
endif

$(filter-out $(if $(MINUTES),chaos) $(if $(PYSPARK),spark),$(PARTS)): $(READY)
	@$(BIN)/python tests/run.py $@

soak: $(READY) ## so many simulated worlds, and every crash point of so many lives of a log
	@$(BIN)/python -m tests.simulation.soak --seeds $(SEEDS)
	@$(BIN)/python -m tests.crash --lives $(LIVES)

# Without SCOPE: two batches with each misfortune and each pair of them, one scope on each core (the large ones also with
# streams that have no delay), and the whole scope without delays, and with nothing out of turn, with one
# delivery put off, with two, as far as it goes; MINUTES bounds each (50, the whole scope twice that), and 7 GB (11).
# SCOPE="--batches 1 --crashes 2 --minutes inf" walks that one.
explore: $(READY) ## every interleaving of a small scope
ifdef SCOPE
	@$(BIN)/python -m tests.exploration $(SCOPE)
else
	@$(BIN)/python -m tests.exploration.stages $(if $(MINUTES),--minutes $(MINUTES))
endif

test-alerts: $(READY) ## incidents caused for real, and the alerts that they fire
	@$(BIN)/python -m pytest -q tests/incidents

bench: $(READY) ## one benchmark
	@$(BIN)/python -m bench $(NAME) $(ARGS)

stubs: $(READY) ## after a change in proto/ this happens by itself
	@$(BIN)/pip install --quiet --no-deps --editable . -c constraints.txt

clean: ## remove what was made
	rm -rf $(VENV) .peers build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .tidemark-dev
	rm -rf services/tidemark/v1/*_pb2*.py services/tidemark/v1/*_pb2*.pyi
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Set-up runs again when what it is made of changed.
$(READY): pyproject.toml constraints.txt hatch_build.py $(wildcard proto/tidemark/v1/*.proto) | prerequisites
	@set -e; $(FIND_PYTHON); \
	if [ ! -x $(BIN)/pip ]; then \
	  echo "setting up $(VENV) with $$($$found --version)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi; \
	echo "installing pinned dependencies and generating stubs (a minute or two the first time)"; \
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]' -c constraints.txt; \
	$(BIN)/python -m tidemark_spark.compile_pyspark >/dev/null; \
	touch $(READY)

prerequisites:
	@$(FIND_PYTHON); \
	if [ -z "$$found" ]; then \
	  echo "Tidemark needs Python >= 3.11, and none of [$(CANDIDATES)] is: install one (apt install python3.11 python3.11-venv, brew install python@3.12) or name yours with make PYTHON=/path/to/python" >&2; exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "Tidemark needs the venv module of $$found: apt install python3-venv" >&2; exit 1; \
	fi; \
	if [ -n "$$JAVA_HOME" ] && [ -x "$$JAVA_HOME/bin/java" ]; then java="$$JAVA_HOME/bin/java"; else java=java; fi; \
	major=$$("$$java" -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1); \
	if [ "$${major:-0}" -lt 17 ]; then \
	  echo "Tidemark needs Java >= 17 for Spark and the local ZooKeeper$${major:+, and found $$major}: install one (apt install openjdk-17-jre-headless, brew install openjdk@17) or set JAVA_HOME" >&2; exit 1; \
	fi
