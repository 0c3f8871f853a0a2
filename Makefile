# Everything runs in .venv, which the first target that needs it makes: with what it takes to run (.ready), or to work on
# Quire too (.dev).
SHELL := bash
.DEFAULT_GOAL := help
BIN := .venv/bin
BUILD_INPUTS := pyproject.toml CMakeLists.txt tools/bootstrap.sh tools/wanted.py \
	tools/requirements/dev.txt \
	$(shell find cmake csrc protos -type f 2>/dev/null)

# Kernels are built anew for another QUIRE_CUDA than they were built for, if one is given.
ifneq ($(and $(QUIRE_CUDA),$(filter-out $(shell cat .venv/.cuda 2>/dev/null),$(QUIRE_CUDA))),)
BUILD_INPUTS += FORCE
endif
FORCE:

# To run Quire, and to work on it.
.venv/.ready: $(BUILD_INPUTS)
	@tools/bootstrap.sh

.venv/.dev: $(BUILD_INPUTS)
	@tools/bootstrap.sh dev

# Every target that help lists.
.PHONY: $(shell sed -n 's/^\([a-z-]*\):.*\#\# .*/\1/p' Makefile)

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: .venv/.dev ## Make .venv, install and build

demo: .venv/.ready ## Start a cluster on the embedded model, stream three completions, stop; MODEL=smollm2 fetches a small model that answers questions
	@$(BIN)/python examples/demo.py $(MODEL)

test: .venv/.dev ## Run the tests of everything that a change could break, in lanes side by side
	@$(BIN)/python -m tools.lanes test

test-deep: .venv/.dev ## Run what takes longer: kernels under sanitizers, bugs planted in kernels, all cases of the tests
	@$(BIN)/python -m tools.lanes deep

SCENARIO ?= cells
SEED ?= 1
SECONDS ?= 120
chaos: .venv/.dev ## Kill and freeze processes at random under load, compare every answer; SCENARIO=cells|compose|serve|everything|http|hostile|http-hostile|schemas|soak|moves|roll|resize|calm SEED= SECONDS= REQUESTS= KILLS=
	@$(BIN)/python -m tests.chaos $(SCENARIO) --seed $(SEED) --seconds $(SECONDS) \
		$(if $(REQUESTS),--requests $(REQUESTS)) $(if $(KILLS),--kills $(KILLS))

test-nightly: .venv/.dev ## Run the kernels in every order of threads, as on other cards, as PTX, with planted bugs, for every architecture (LANES= some of it); writes tests/nightly.md
	@$(BIN)/python -m tools.lanes nightly --record tests/nightly.md $(if $(LANES),--lanes $(LANES))

release-check: .venv/.dev ## Fail unless every lane of CI and of the nightly run has a stored result that stands
	@$(BIN)/python -m tools.lanes release

test-compose: images ## Run the containers of deploy/compose.yaml on this machine's engine, and disturb them
	@$(BIN)/python -m pytest -m compose --durations=15 tests/compose

WORKER ?= worker
test-compose-gpu: images ## Run deploy/compose.gpu.yaml on an engine that has a stand-in for NVIDIA's hook; workers emulate their GPUs, in the image WORKER=worker|worker-cuda
	@csrc/emulated_build.sh
	@WORKER='$(WORKER)' $(BIN)/python -m pytest -m compose_gpu --durations=15 tests/compose_gpu

test-compat: .venv/.dev ## Point stock clients of other projects at a cluster: the same text through every front
	@tests/compat/setup.sh
	@$(BIN)/python -m pytest -q -s -m compat tests/compat

lint: .venv/.dev ## Check style, types, protos and the dependency rule, and that pytest can load every test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')
	$(BIN)/buf lint
	$(BIN)/lint-imports
	set -o pipefail; $(BIN)/python -m pytest -q -m '' --collect-only tests | { grep -Ev '^(tests/.*::|cases: )'; true; }

format: .venv/.dev ## Rewrite the sources in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $$(git ls-files '*.cpp' '*.h' '*.cu' '*.cuh')

images: .venv/.dev ## Build the images of the services (IMAGE_TAG=dev, IMAGE_REGISTRY=, BASE_IMAGE=, TARGETS=); no step needs a network
	@tools/images.sh $(TARGETS)

wheels: .venv/.dev ## Build sdist and wheels of each CPython found into build/wheels/dist, and try them (PYTHONS= names interpreters)
	@tools/wheels.sh $(PYTHONS)

lock: .venv/.dev ## Pin anew what images and .venv hold, and fetch what images do (NAMES= some lists; UPDATE=1 keeps versions that still fit)
	@$(BIN)/python -m tools.lock $(if $(filter 1,$(UPDATE)),update,resolve) $(NAMES)
	@$(if $(filter dev,$(NAMES)),,$(BIN)/python -m tools.lock fetch $(NAMES))

smoke: ## Check a running router from outside: TARGET=HOST:PORT, and TLS_DIR=, SERVER_NAME=, API_KEY= as it needs
	@TLS_DIR='$(TLS_DIR)' SERVER_NAME='$(SERVER_NAME)' deploy/smoke.sh $(TARGET)

monitoring-check: .venv/.dev ## Check what Prometheus and Grafana are given, and test its rules; needs promtool
	@promtool check config deploy/monitoring/prometheus.yml deploy/monitoring/prometheus.compose.yml
	@promtool test rules tests/monitoring/*.test.yml
	@$(BIN)/python -m pytest -q tests/monitoring

deploy: .venv/.dev ## Render and check OVERLAY= with IMAGE_TAG= [IMAGE_REGISTRY= NAMESPACE= COMPONENTS=]; APPLY=1 puts it onto a cluster
	@$(BIN)/python -m tools.deploy --overlay "$(OVERLAY)" --tag "$(IMAGE_TAG)" --registry "$(IMAGE_REGISTRY)" \
		--namespace "$(or $(NAMESPACE),quire)" --components $(COMPONENTS) $(if $(filter 1,$(APPLY)),--apply)

test-manifests: .venv/.dev ## Run the pods of the Kubernetes manifests with a container engine
	@$(BIN)/python -m pytest -q -m manifests tests/manifests

architectures: .venv/.dev ## Write docs/models.md: how each causal architecture of the installed transformers is served
	@$(BIN)/python -m tools.architectures

docs: .venv/.dev ## Build the documentation into build/docs; a dead link ends it
	@$(BIN)/sphinx-build -q -W --keep-going -c docs . build/docs
	@echo build/docs/docs/index.html

bench-smoke: .venv/.ready ## Tokens/s, step time split and bytes per step at 64 decoding sequences
	@$(BIN)/python bench/smoke.py

bench-step: .venv/.ready ## A decode step of a 125M model at 1 to 64 sequences: beside its roof, and Python's share
	@OMP_WAIT_POLICY=passive $(BIN)/python -m bench.step

bench-growth: .venv/.dev ## The cluster at 1 to 256 streams: tokens/s, and the CPU time of each service (REPORT=1 writes the docs)
	@$(BIN)/python -m bench.growth $(if $(filter 1,$(REPORT)),--report)

bench-http: .venv/.dev ## What HTTP costs beside gRPC: time to the first token, and the router's CPU time a token at 256 streams
	@$(BIN)/python -m bench.http_streams

bench-sched: .venv/.ready ## Cost of scheduling and of the step message
	@$(BIN)/python bench/scheduler.py

bench-cells: .venv/.ready ## Several cells behind routers: prefix hits and latency by routing policy, and a cell drained in mid-run
	@$(BIN)/python -m bench.cells

bench-kv: .venv/.dev ## KV cache: share that holds tokens, savings by sharing, cost of preemption and of fewer bits
	@$(BIN)/python bench/kv.py
	@OMP_WAIT_POLICY=passive $(BIN)/python -m bench.sharing
	@$(BIN)/python -m bench.kv_quality

bench-tp: .venv/.dev ## One model on 1, 2 and 4 workers: memory, speed, and the same tokens on all
	@$(BIN)/python -m bench.tensor_parallel

bench-speculation: .venv/.dev ## One stream with and without drafts, on edits of this repository's files, prose and random tokens
	@$(BIN)/python -m bench.speculation

bench-simulator: .venv/.dev ## The simulator beside a real cluster under the same requests, and its error
	@$(BIN)/python -m bench.simulator

bench-scale: .venv/.ready ## CPU time and bytes of one more token, request, router or cell
	@$(BIN)/python -m bench.scale

bench-peers: .venv/.dev ## Quire beside other engines (ENGINES= WORKLOADS= SHAPES= DTYPES= ROUNDS=3)
	@$(BIN)/python -m bench.peers setup $(ENGINES)
	@$(BIN)/python -m bench.peers run --rounds $(or $(ROUNDS),3) $(if $(ENGINES),--engines $(ENGINES)) \
		$(if $(WORKLOADS),--workloads $(WORKLOADS)) $(if $(SHAPES),--shapes $(SHAPES)) $(if $(DTYPES),--dtypes $(DTYPES))

bench-guard: .venv/.dev ## Ratios that must not fall: our kernels over torch's, a cluster over the roof (RECORD=1 writes them)
	@$(BIN)/python -m bench.guard $(if $(filter 1,$(RECORD)),--record)

bench-kernels: .venv/.dev ## Paged attention against the memory bandwidth of the same process
	@$(BIN)/python bench/kernels_cpu.py
	@if $(BIN)/python -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then \
		$(BIN)/python -m bench.kernels_gpu; \
	else echo 'kernels on a GPU: not measured, there is none here'; fi

# Not from .venv: a machine with a GPU may have no network, and has its own torch.
PYTHON ?= $(if $(wildcard $(BIN)/python),$(BIN)/python,python3)
bench-gpu: ## On a machine with a GPU: output tokens per second of a Llama-3-8B with made-up weights
	@$(PYTHON) -m bench.gpu

gpu-check: ## On a machine with a GPU: build, test, sanitize and measure the CUDA kernels (SMOKE=1: what is soon known)
	@$(PYTHON) -m bench.gpu_check $(if $(filter 1,$(SMOKE)),--smoke)

clean: ## Remove .venv and everything built
	rm -rf .venv build quire/v1 quire/facades worker_svc/_C.pyi
