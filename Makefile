# Everything a developer or CI does. Each target makes what it needs, its own .venv included.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BUF := $(abspath $(BIN)/buf)
# Two torch processes on few cores must not spin for long while they wait.
export GOMP_SPINCOUNT := 20000
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup demo serve test fuzz lint audit format proto proto-baseline bench soak bench-autoscale clean

help: ## Show this help
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /|/' | awk -F'|' '{printf "  make %-15s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Outrider needs Python 3.11 or newer: make PYTHON=python3.11 setup"; exit 1; }
	$(BIN)/pip install --progress-bar on -c constraints.txt -e '.[dev]'
	@touch $@

setup: $(STAMP) ## Install everything into .venv

demo: $(STAMP) ## Run the main job: three prompts on a real model, with and without speculation
	$(BIN)/outrider demo

serve: $(STAMP) ## Serve the demo model on http://127.0.0.1:8000 and gRPC 127.0.0.1:9000
	$(BIN)/outrider serve

test: lint ## Lint, then run all tests, in parts side by side
	$(BIN)/python scripts/run_tests.py -q

fuzz: $(STAMP) ## Random requests for about an hour (FACTOR=30 times as many as `make test` takes)
	OUTRIDER_FUZZ=$(or $(FACTOR),30) $(BIN)/pytest tests/e2e/any_parameters tests/e2e/test_openapi_page.py tests/integration/gateway/test_bodies_fuzzed.py

lint: $(STAMP) ## Check style, types, import directions, protos, file sizes (changes nothing)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/bandit --quiet --configfile pyproject.toml --recursive services
	$(BIN)/mypy
	$(BIN)/lint-imports
	cd protos && $(BUF) lint
	cd protos && $(BUF) format --diff --exit-code
	cd protos && $(BUF) breaking --against baseline.binpb
	$(BIN)/python scripts/generate_stubs.py --check
	$(BIN)/python scripts/check_file_sizes.py

audit: $(STAMP) ## Look up known vulnerabilities of everything that is installed (asks osv.dev)
	$(BIN)/pip-audit --requirement constraints.txt --disable-pip --no-deps --vulnerability-service osv

format: $(STAMP) ## Fix style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	cd protos && $(BUF) format --write

proto: $(STAMP) ## Generate the gRPC stubs from protos/
	$(BIN)/python scripts/generate_stubs.py

proto-baseline: $(STAMP) ## At a release: record the protos that later changes must not break
	cd protos && $(BUF) build -o baseline.binpb

bench: $(STAMP) ## Measure: engine step, round overhead, speculation on against off (minutes)
	$(BIN)/outrider models fetch smollm2-135m-instruct
	$(BIN)/python bench/engine_step.py --json bench/out/engine_step.json
	$(BIN)/python bench/round_overhead.py --json bench/out/round_overhead.json
	$(BIN)/outrider bench --prompts $(or $(PROMPTS),bench/prompts_smoke.jsonl) --drafters off,eagle,prompt_lookup,fused \
	  --concurrency $(or $(CONCURRENCY),1) --max-tokens 128 --temperature 0 --seed 1 --json bench/out/bench.jsonl

soak: $(STAMP) ## Streams under random faults for SECONDS=600: every token must be that of an undisturbed run (MODEL=demo)
	$(BIN)/python -m bench.soak --seconds $(or $(SECONDS),600) --model $(or $(MODEL),tiny) $(if $(SEED),--seed $(SEED))

bench-autoscale: $(STAMP) ## Load up and down on Ray Serve: replicas follow, no token is lost (MODEL=demo)
	$(BIN)/python -m bench.autoscale --model $(or $(MODEL),tiny)

clean: ## Remove what make built
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache dist
