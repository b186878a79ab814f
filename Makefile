# Antiphon. `make help` lists the targets. The only requirements are Python 3.11 or later and make.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SERVE := $(VENV)/.ready-to-serve
TEST := $(VENV)/.ready-to-test
CLIENTS := build/.ready-clients
LOCK := requirements.lock
# Options of the server: make serve ARGS="--port 9000". Options of pytest: make test ARGS="-k admission"
ARGS ?=
# Tests start dozens of processes; without cached bytecode each of them would compile the whole project again.
unexport PYTHONDONTWRITEBYTECODE
# One test process more than cores, since many tests wait for servers; four at most, since each loads torch.
# Idle processes take tests from busy ones.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
SPREAD := -n $(shell echo $$(($(CORES) < 3 ? $(CORES) + 1 : 4))) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help serve test test-processes test-engine test-clients test-all test-full test-cpus test-gpu check mutants snapshots models prove sbom release bench bench-peers clean

help:  ## list the targets
	@echo "make TARGET [ARGS=...]"; echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(SERVE)  ## install, then serve the embedded model on http://127.0.0.1:8000/v1
	$(BIN)/antiphon serve $(ARGS)

# Three parts of the tests take longer than all others: those that compute with torch, those that run other programs, and
# those that start, kill and replace whole processes of this one, which have the marker `processes`.
ENGINE_TESTS = tests/engine tests/training tests/bench tests/models tests/app/requests/test_constraints.py \
	tests/app/turns/test_rounds_embedded.py tests/kit/conformance/test_suites_on_embedded_model.py tests/test_readme.py
CLIENT_TESTS = tests/clients tests/codex tests/web tests/console $(addprefix tests/kit/,pytest_plugin test_sample.py \
	test_hostile_servers_in_terminals.py)
OTHERS = $(addprefix --ignore=,$(ENGINE_TESTS) $(CLIENT_TESTS))

test: $(TEST) $(CLIENTS)  ## install, then run the tests but those of the next targets (fixed seeds, reduced counts)
	$(BIN)/python -m pytest $(SPREAD) -m 'not processes' $(OTHERS) $(ARGS)

test-processes: $(TEST) $(CLIENTS)  ## run the tests that start, kill and replace servers, databases and commands
	$(BIN)/python -m pytest $(SPREAD) -m processes $(OTHERS) $(ARGS)

test-engine: $(TEST) $(CLIENTS)  ## run the tests of the torch engine, the training and the benchmarks
	$(BIN)/python -m pytest $(SPREAD) $(ENGINE_TESTS) $(ARGS)

test-clients: $(TEST) $(CLIENTS)  ## run the tests with other programs: SDKs, Codex, a browser, terminals, pytest
	$(BIN)/python -m pytest $(SPREAD) $(CLIENT_TESTS) $(ARGS)

test-all: test test-processes test-engine test-clients  ## run all tests

test-full: $(TEST) $(CLIENTS)  ## run all tests with full counts: every split, 1000 random walks, 10 000 streams per dialect
	ANTIPHON_TEST_FULL=1 $(BIN)/python -m pytest --timeout 1800 $(SPREAD) $(ARGS)

# Environments in which torch and the kernels compute as on other x86-64 CPUs. MKL's compatible path is that of all makers.
CPU_1 = MKL_CBWR=COMPATIBLE
CPU_2 = MKL_CBWR=COMPATIBLE ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41
CPU_3 = ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 CC="cc -mno-amx-int8 -mno-amx-bf16 -mno-avx512f"
CPUS ?= 1 2 3
CPU_TESTS ?= tests/engine tests/test_readme.py

test-cpus: $(addprefix test-cpu-,$(CPUS))  ## run the engine's tests and the README's blocks as on other CPUs: CPUS=2 selects one, CPU_TESTS=tests all tests

test-cpu-%: $(TEST) $(CLIENTS)
	@echo 'As on another CPU, $* of 3: $(CPU_$*)'
	$(CPU_$*) $(BIN)/python -m pytest $(SPREAD) $(CPU_TESTS) $(ARGS)

GPU_TESTS ?= $(addprefix tests/engine/,adapters/test_adapted_output.py adapters/test_registry.py forward/test_cuda_graphs.py \
	forward/test_greedy_output.py forward/recurrent/test_hybrid_models.py media/test_pictures.py \
	scheduler/test_continuation.py scheduler/test_core.py scheduler/test_draft_model.py scheduler/test_prefix_cache.py \
	test_engine_contract.py)
# Packed layers are computed by the kernels for CPUs.
NOT_ON_GPU = int8 or int4 or quantiz or mixture or deterministic or on_a_cpu

test-gpu: $(TEST)  ## run the engine's tests with their models on CUDA; needs a GPU
	ANTIPHON_TEST_DEVICE=cuda $(BIN)/python -m pytest $(SPREAD) -k "not ($(NOT_ON_GPU))" $(GPU_TESTS) $(ARGS)

check: $(TEST)  ## check lint, format, strict types, layers and sizes, in Python and in web/
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tests.web.sources
	$(BIN)/python -m pytest -q tests/test_layers.py tests/test_sizes.py

mutants: $(TEST)  ## put listed faults into a copy of the code, one at a time; tests must fail: about 20 minutes
	$(BIN)/python -m tests.mutation $(ARGS)

snapshots: $(TEST)  ## rewrite the snapshots; then read the diff
	$(BIN)/python -m pytest -q --snapshot-update tests/snapshots $(ARGS)
	@git --no-pager diff --stat -- snapshots
	@echo "Read every line of 'git diff snapshots/' before you commit: a snapshot is a claim about the wire."

models: $(TEST)  ## compare every architecture with transformers, and write docs/reference/models.md: about 20 minutes
	$(BIN)/python -m tests.models.table > docs/reference/models.md.new && mv docs/reference/models.md.new docs/reference/models.md

sbom:  ## write build/sbom.json, the pinned dependencies in the form of CycloneDX
	$(PYTHON) -m venv build/sbom && build/sbom/bin/pip install -q cyclonedx-bom==7.5.0
	build/sbom/bin/cyclonedx-py requirements requirements.lock --output-file build/sbom.json
	@echo build/sbom.json

release: $(TEST) sbom  ## build wheel, sdist, SBOM and notes into build/release, and check both in new environments
	rm -rf build/release && mkdir -p build/release && cp build/sbom.json build/release
	$(BIN)/python -m tests.release $(ARGS)
	build/sbom/bin/pip install -q twine==7.0.0 && build/sbom/bin/twine check --strict build/release/*.whl build/release/*.tar.gz

bench: $(TEST)  ## run every benchmark against the installed peers: over an hour; results in .bench/results
	$(BIN)/python -m bench.protocol
	$(BIN)/python -m bench.decoding
	$(BIN)/python -m bench.store_overhead
	$(BIN)/python -m bench.inspection
	$(BIN)/python -m bench.batches
	$(BIN)/python -m bench.remote_overhead
	$(BIN)/python -m bench.compare $(TINY) $(ARGS)
	$(BIN)/python -m bench.compare $(SMALL) $(ARGS)
	$(BIN)/python -m bench.compare $(INT4) $(ARGS)
	$(BIN)/python -m bench.compare $(OSS20B) $(ARGS)
	$(BIN)/python -m bench.compare $(EXACT) $(ARGS)
	$(BIN)/python -m bench.compare $(SLOW) $(ARGS)
	KV_GIB=8 $(BIN)/python -m bench.compare $(AGENT) $(ARGS)
	$(BIN)/python -m bench.compare $(OSS) $(ARGS)
	$(BIN)/python -m bench.compare $(REMOTE) $(ARGS)
	$(BIN)/python -m bench.compare $(EMBEDDED) $(ARGS)
	$(BIN)/python -m bench.compare $(GPU) $(ARGS)
	$(BIN)/python -m bench.busy_cores
	$(BIN)/python -m bench.embeddings
	$(BIN)/python -m bench.memory

prove: $(TEST)  ## install vLLM's CPU build and llama.cpp, and test against them; the alerts, if promtool exists: about 20 minutes
	$(BIN)/python -m bench.install vllm
	ANTIPHON_PROVE=1 $(BIN)/python -m pytest -q --timeout 1800 tests/prove tests/app/observability/test_dashboards.py $(ARGS)

bench-peers: $(TEST)  ## install the servers that `make bench` compares with, each in its own environment
	$(BIN)/python -m bench.install $(ARGS)

clean:  ## remove the environment and all caches
	rm -rf $(VENV) .bench .codex .pytest_cache .mypy_cache .ruff_cache build *.egg-info

# The parts of the benchmark, explained in docs/bench.md.
RESULTS = --json .bench/results/$(1).json --out .bench/results/$(1).md
TINY = --model tiny --streams 1,4,16,64 --rounds 3 --scenarios growth,long,next --limit-minutes 25 $(call RESULTS,tiny)
# Two lines, since all servers together need more than 24 GiB of memory.
SMALL = --model small --servers antiphon-int8,vllm-bf16,llama.cpp --streams 1,4,16 --rounds 3 $(call RESULTS,small)
INT4 = --model small --servers antiphon-int4,llama.cpp-q4_0,antiphon-int8,llama.cpp --streams 1,4,16 --rounds 3 $(call RESULTS,int4)
OSS20B = --model oss20b-8 --servers antiphon-int8,llama.cpp --streams 1,4,16 --rounds 3 $(call RESULTS,oss20b)
EXACT = --model small --servers antiphon,vllm-fp32 --streams 1,4,16 --rounds 3 $(call RESULTS,exact)
SLOW = --model small --servers antiphon,transformers,transformers-cb --streams 1,4 --rounds 1 $(call RESULTS,slow)
AGENT = --model small --servers antiphon,antiphon-int8 --rounds 0 --scenarios next,long --repeat 1 $(call RESULTS,agent)
REMOTE = --model tiny --servers vllm-guided,antiphon-vllm --streams 1,16,64 --rounds 3 --limit-minutes 15 $(call RESULTS,remote)
OSS = --model oss --servers antiphon --rounds 0 --scenarios next $(call RESULTS,oss)
EMBEDDED = --model embedded --servers antiphon --streams 1,16 --rounds 3 --limit-minutes 3 $(call RESULTS,embedded)
GPU = --model small --servers antiphon-gpu,transformers-gpu --streams 1,16,128 --rounds 3 $(call RESULTS,gpu)

# The environment is rebuilt when pyproject.toml or the lock file changes.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "antiphon needs Python 3.11 or later: run make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

# Links to the folders under their import name antiphon.*, so that mypy and editors see new files at once.
LINKED := $(VENV)/src/antiphon
LINKS := $(addprefix $(LINKED)/,app console engine events harmony kit state web)
$(LINKED): | $(VENV)/bin/python
	@mkdir -p $@
	@ln -sf $(foreach file,__init__.py __main__.py py.typed,../../../app/public/$(file)) $@
	@$(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' | xargs -I{} sh -c 'echo ../../../src > {}/antiphon-src.pth'

# One target for each, so that an environment that exists already gets the link of a new package.
$(LINKS): | $(LINKED)
	@ln -sfn ../../../$(@F) $@

# On Linux, the torch of PyPI brings gigabytes of CUDA libraries. Without an NVIDIA driver, and without a package index of
# one's own, its build for CPUs is installed. `make TORCH_INDEX=` installs the one of PyPI.
TORCH_INDEX ?= $(shell test "$$(uname -s)" = Linux && ! command -v nvidia-smi >/dev/null \
	&& ! $(PYTHON) -m pip config list 2>/dev/null | grep -qE "index|find-links" && echo https://download.pytorch.org/whl/cpu)
PIP_INSTALL = $(BIN)/python -m pip install --disable-pip-version-check --constraint $(LOCK) \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))
define SAY_WHAT_IS_INSTALLED
	@echo "Installing Antiphon and its dependencies into $(VENV), once. With torch for CPUs, that is about 1.4 GB."
	@$(if $(TORCH_INDEX),echo "torch comes from $(TORCH_INDEX); for CUDA: make TORCH_INDEX= $(MAKECMDGOALS)",true)
endef

$(SERVE): pyproject.toml $(LOCK) | $(LINKS)
	$(SAY_WHAT_IS_INSTALLED)
	$(PIP_INSTALL) --editable '.[torch,vision]'
	@touch $@

$(TEST): pyproject.toml $(LOCK) | $(LINKS)
	$(SAY_WHAT_IS_INSTALLED)
	$(PIP_INSTALL) --editable '.[torch,grpc,dev]'
	@touch $(SERVE) $@

$(CLIENTS): $(wildcard tests/clients/programs/*.lock) tests/harmony/real_templates.lock | $(TEST)
	@echo "Installing the clients that the tests run, and the chat templates that they read, into build, once."
	$(BIN)/python -m tests.clients.install
	@mkdir -p $(@D) && touch $@
