# SPDX-License-Identifier: Apache-2.0
# The whole of Tidemark from a fresh clone: `make demo` or `make test`. Python >= 3.11, Java >= 17 and make are all it needs.
SHELL := /bin/sh
.DEFAULT_GOAL := help
unexport PIP_CONSTRAINT

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
PARTS := lint types unit compiled contract spark simulation integration chaos charts
NAME ?= produce
SEEDS ?= 1000
LIVES ?= 20
GO_TOOLS := github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.4 github.com/bojand/ghz/cmd/ghz@v0.93.0

# Your own choice: make PYTHON=/path/to/python3.12 demo
# Else the distribution's Python, an optimized build: one that pyenv has built needs 10 to 18 % more CPU time for everything.
PYTHON ?=
SYSTEM_PYTHON := /usr/bin/python3
CANDIDATES := $(or $(PYTHON),python3 python3.13 python3.12 python3.11)
IS_COMPLETE := import ensurepip, os, sys, sysconfig; \
	sys.exit(sys.version_info < (3, 11) or not os.path.exists(sysconfig.get_path("include") + "/Python.h"))
FIND_PYTHON = found=; older=; \
	if [ -z "$(PYTHON)" ] && "$(SYSTEM_PYTHON)" -c '$(IS_COMPLETE)' 2>/dev/null; then found=$(SYSTEM_PYTHON); fi; \
	for python in $${found:-$(CANDIDATES)}; do \
	  if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$python"; break; fi; \
	  if version=$$("$$python" --version 2>/dev/null); then older="$$older $$version ($$python)"; fi; \
	done
PIP_INSTALL = [ -w "$${HOME:-/}" ] || export PIP_NO_CACHE_DIR=1; TIDEMARK_COMPILE=0 $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[$(1)]' -c constraints.txt || { \
	  echo "pip could not install Tidemark's dependencies (its errors are above): behind a proxy, run make again with HTTPS_PROXY=http://host:port (now $${HTTPS_PROXY:-$${https_proxy:-not set}}), and with PIP_CERT=/path/to/ca.crt if the proxy has its own certificate authority" >&2; exit 1; }

.PHONY: help demo test check test-alerts test-cluster grpc-tools $(PARTS) soak explore stream flights screenshots bench docs release version stubs clean prerequisites

# deploy/tools/help.awk has the forms of the comments that begin with ##.
help: ## Show this list
	@awk -f deploy/tools/help.awk $(firstword $(MAKEFILE_LIST))
	@echo; echo "PYTHON=/path/to/python3.12 chooses the Python that $(VENV) is set up with."

##@ Try it
demo: $(READY) ## Real flights, a leader killed with kill -9, and Spark reads every row
	@$(BIN)/python -m tidemark.local.demo

##@ Change it
check: $(READY) ## The inner loop: linters, types, most unit tests, 100 simulated worlds
	@$(BIN)/python tests/run.py $@

test: $(READY) ## Everything a pull request must pass: all the parts below
	@$(BIN)/python tests/run.py

##: lint|types|unit|compiled|simulation|charts|contract|integration|chaos|spark | One part of make test
$(filter-out $(if $(MINUTES),chaos) $(if $(PYSPARK),spark),$(PARTS)): $(READY)
	@$(BIN)/python tests/run.py $@

stubs: $(READY) ## Generate the gRPC stubs from proto/; happens by itself after a change there
	@TIDEMARK_COMPILE=0 $(BIN)/pip install --quiet --no-deps --editable . -c constraints.txt

docs: $(VENV)/.docs ## Build the documentation site with search into build/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "The first page is build/site/index.html"

clean: ## Remove everything that make has built, .venv included
	rm -rf $(VENV) .peers build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .tidemark-dev
	rm -rf services/tidemark/v1/*_pb2*.py services/tidemark/v1/*_pb2*.pyi
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

##@ Test it harder
soak: $(READY) ## SEEDS=1000 LIVES=20 | Simulated worlds on all cores, then every crash point of LIVES lives of a log
	@$(BIN)/python -m tests.simulation.soak --seeds $(SEEDS)
	@$(BIN)/python -m tests.crash --lives $(LIVES)

##: chaos MINUTES=10 [LOAD=20] | Rounds of kills, stops and network cuts on real processes, with LOAD processes that compute: drawn by the seed unless given
ifdef MINUTES
chaos: $(READY)
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(LOAD),--load $(LOAD))
endif

stream: $(READY) ## [LOAD=20] | A Spark stream through killed brokers and a killed driver, with LOAD processes that compute; then copies through a killed executor
	@$(BIN)/python -m tests.chaos.stream $(if $(LOAD),--load $(LOAD))
	@$(BIN)/python -m pytest -q tests/spark/sink -m long

flights: $(READY) ## [ARGS="--days 60 --kills 2"] | The flights rolled up through five killed brokers and five killed drivers, and compared with pandas
	@$(BIN)/python -m tests.chaos.flights $(ARGS)

# Without SCOPE: two batches with each fault and each pair of faults, one scope on each core; the large scopes also without
# stream delays. Then the whole scope: without delays, with nothing out of order, with one late delivery, with two, and
# so on. MINUTES (50) bounds each scope, the whole scope twice that; the memory bounds are 7 GB and 11 GB.
# SCOPE="--batches 1 --crashes 2 --minutes inf" explores that scope only.
##: explore [MINUTES=5] [SCOPE="..."] | Every interleaving of small scopes; three hours unless MINUTES bounds each scope
explore: $(READY)
ifdef SCOPE
	@$(BIN)/python -m tests.exploration $(SCOPE)
else
	@$(BIN)/python -m tests.exploration.stages $(if $(MINUTES),--minutes $(MINUTES))
endif

##: spark PYSPARK=4.0.5 | tests/spark on another PySpark; PYSPARK=all runs the last release of each supported series
ifdef PYSPARK
spark: $(READY)
	@$(BIN)/python -m tests.spark.versions $(PYSPARK) $(if $(ARGS),-- $(ARGS))
endif

test-alerts: $(READY) ## Incidents on a local cluster, a real Prometheus, and the alerts that fire
	@$(BIN)/python -m pytest -q tests/incidents

test-cluster: $(READY) ## KUBECONFIG=FILE [SECURE=1 [ISSUER=NAME] [POLICIES=1]] [ARGS="SCENARIO..."] | The chart and the images on a Kubernetes cluster, with SECURE=1 a secure release (ISSUER=NAME: certificates of cert-manager's ClusterIssuer; POLICIES=1: the network enforces NetworkPolicies); KUBE=DIRECTORY has scripts that start one
	@KUBE="$(or $(KUBE),../shared/kube)" $(BIN)/python -m tests.cluster $(if $(SECURE),--secure) $(if $(ISSUER),--issuer $(ISSUER)) $(if $(POLICIES),--policies) $(ARGS)

grpc-tools: $(READY) ## grpcurl and ghz, built with Go into .peers/go, call a local cluster; from then on make test runs these tests, too
	@command -v go >/dev/null || { echo "grpcurl and ghz are Go programs, and there is no Go: install it (apt install golang-go, brew install go)" >&2; exit 1; }
	@for tool in $(GO_TOOLS); do \
	  GOBIN="$(CURDIR)/.peers/go/bin" go install "$$tool" || { echo "go could not build $$tool (its errors are above): GOPROXY names the module proxy" >&2; exit 1; }; \
	done
	@$(BIN)/python -m pytest -q tests/integration/services/test_grpc_tools.py

screenshots: $(READY) ## Pictures of the console in docs/console, taken with chromium from a local cluster
	@$(BIN)/python -m tests.integration.console.screenshots

bench: $(READY) ## NAME=produce [ARGS="--partitions 1000"] | One benchmark: produce, latency, attacks, brokers, compare, durability, failover, controller, admin, log, record, stalls, many_clients, security, spark, transactions, typed, scrape, regress or page
	@$(BIN)/python -m bench $(NAME) $(ARGS)

##@ Release it
# Labels of the rendered charts hold the version.
version: $(READY) ## [VERSION=0.2.0] | Show the version, or write it into pyproject.toml, the charts and CHANGELOG.md
	@$(BIN)/python -m deploy.tools.release version $(VERSION)
ifdef VERSION
	@log=$$($(BIN)/python -m tests.charts.golden 2>&1) || { echo "$$log" >&2; exit 1; }
endif

release: $(VENV)/.release ## [DRY_RUN=1] | Check, then build wheels, sdist, charts and notes into dist/ and tag; DRY_RUN=1 does not tag
	@$(BIN)/python -m deploy.tools.release build $(if $(DRY_RUN),--dry-run)

# Runs again when a file that determines the environment has changed.
$(READY): pyproject.toml constraints.txt hatch_build.py $(wildcard proto/tidemark/v1/*.proto) | prerequisites
	@set -e; $(FIND_PYTHON); \
	if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  echo "setting up $(VENV) with $$($$found --version) ($$found)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi; \
	echo "installing pinned dependencies and generating stubs (a minute or two the first time)"; \
	$(call PIP_INSTALL,dev); \
	$(BIN)/python -m tidemark_spark.compile_pyspark >/dev/null; \
	$(BIN)/python -m tidemark.local.zookeeper_process >/dev/null || true; \
	touch $(READY)

# Dependencies of one target are installed when that target first runs.
$(VENV)/.docs $(VENV)/.release: $(VENV)/.%: $(READY)
	@$(call PIP_INSTALL,$*); touch $@

prerequisites:
	@$(FIND_PYTHON); \
	if [ -z "$$found" ]; then \
	  echo "Tidemark needs Python 3.11 or newer, and found$${older:- none}: install one (apt install python3.11 python3.11-venv, brew install python@3.12) or name yours with make PYTHON=/path/to/python" >&2; exit 1; \
	fi; \
	if ! "$$found" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "Tidemark needs the venv module of $$found: apt install python3-venv" >&2; exit 1; \
	fi; \
	if [ ! -w . ]; then \
	  echo "Tidemark sets up $(VENV) in $(CURDIR), which is read-only for this user: clone Tidemark into a directory that this user can write to" >&2; exit 1; \
	fi; \
	if [ -n "$$JAVA_HOME" ] && [ -x "$$JAVA_HOME/bin/java" ]; then java="$$JAVA_HOME/bin/java"; else java=java; fi; \
	major=$$("$$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1); \
	if [ "$${major:-0}" -lt 17 ]; then \
	  echo "Tidemark needs Java 17 or newer for Spark and the local ZooKeeper, and found $${major:-none}: install one (apt install openjdk-17-jre-headless, brew install openjdk@17) or set JAVA_HOME" >&2; exit 1; \
	fi
