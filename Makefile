# make help lists the commands. Each sets up .venv first if it has to.

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.installed
EXTRAS := all,demo,test
SHELL := /bin/bash
# Idle OpenMP threads that spin slow everything down on a machine with other work (scoring pairs on
# two busy cores: 84 pairs/s when they spin, 415 when they sleep). torch reads it when it is imported.
export OMP_WAIT_POLICY ?= PASSIVE
# Images that set it have every process of a test compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# The first interpreter that is new enough; PYTHON=... chooses another.
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python3.14; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; done)

.PHONY: help install demo test test-fast test-nightly test-newest test-long lint types format docs dist test-flink test-flink-short bench bench-full bench-long bench-resilience reproduce gpu-check image clean

help: ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 18

install: $(READY) ## make .venv with everything that the other commands need; CPU=1: torch without CUDA

# The stamp records for what torch was installed: for CPUs alone, or as the package index has it. An
# environment that was made for the other one is made again.
INSTALLED := $(shell cat $(READY) 2>/dev/null)
TORCH := $(if $(CPU),cpu,$(INSTALLED))
ifneq ($(TORCH),$(INSTALLED))
$(READY): remake
.PHONY: remake
endif

# uv sets the environment up in seconds and shares files between environments; where it cannot be
# had, or does not trust the certificates that pip is told to, pip does the same more slowly. Both
# compile what they install: where PYTHONDONTWRITEBYTECODE is set, as in many images, each command
# would else compile Beam or torch anew, seconds at every start.
# uv alone knows where PyTorch keeps its builds for CPUs, so that pip is not tried for them.
# The stamp is written last: an interrupted installation is redone.
$(READY): setup.py constraints.txt
	@test -n "$(PYTHON)" || { echo "vlmill needs Python 3.11 or newer; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -m venv $(if $(filter remake,$^),--clear) $(VENV) || { echo "python -m venv failed; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@if $(BIN)/python -m pip install --quiet --disable-pip-version-check 'uv>=0.7' && $(BIN)/uv --version >/dev/null \
		&& echo "installing with uv" \
		&& $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --constraint constraints.txt \
			$(if $(TORCH),--torch-backend $(TORCH)) --editable '.[$(EXTRAS)]'; then :; \
	elif test -n "$(TORCH)"; then \
		echo "make CPU=1 install: uv could not install PyTorch's builds for CPUs (above), which it takes from PyTorch's own index; where that cannot be reached, run make install" >&2; exit 1; \
	else \
		echo "uv does not install here; installing with pip, which takes minutes"; \
		$(BIN)/python -m pip install --disable-pip-version-check --constraint constraints.txt --editable '.[$(EXTRAS)]'; \
	fi
	@echo $(TORCH) > $(READY)

demo: $(READY) ## web pages to a retrieval report: demo/report.html (3 to 6 minutes)
	$(BIN)/python examples/demo.py --output demo

# As many processes as cores, but no more than memory is for: each takes 1 to 5 GB. The tests of a file
# stay together, as they share what takes long to make.
TEST = $(BIN)/python -m pytest -q --numprocesses auto --maxprocesses 8 --dist loadfile

test: $(READY) ## what a change must pass; ends with its CPU seconds (goal: 1,300)
	$(TEST) --durations 15

test-fast: $(READY) ## the tests that take less than a second or so each
	$(TEST) -m "not slow"

lint: $(READY) types ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy -p vlmill
	$(BIN)/mypy -p benchmarks.gpu_check
	$(BIN)/mypy tests examples benchmarks

format: $(READY) ## let ruff format and sort
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

# The theme warns of a later mkdocs, which setup.py does not take.
docs: $(READY) ## the site of the documentation: build/site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

dist: $(READY) ## wheel and source of a release: dist/
	rm -rf dist
	$(BIN)/python -m build --outdir dist .
	$(BIN)/python -m twine check --strict dist/*

test-nightly: $(READY) ## what make test leaves to one of its kind: more kills, stores, models, installs; benchmarks, the harness of parity; GPUs' tests, on the CPU where there is none
	$(TEST) --nightly -m "nightly or gpu" --durations 15

# Ignores constraints.txt: the newest versions that setup.py and the dependencies allow. Run are the
# fast tests of what another version may change: private functions, files of other projects, servers,
# stores, training and its checkpoints. Needs 8 GB of disk (most of it PyTorch's libraries of CUDA),
# 310 CPU seconds for the tests, and without uv's cache a download of 3 GB.
NEWEST := build/newest
NEWEST_TESTS := $(addprefix tests/,models/test_probes.py models/layers models/convert models/detector/test_fused_stages.py \
	models/detector/test_operators.py train/devices train/optim train/checkpoints train/run/test_job.py train/run/test_updates.py \
	runtime/test_pipes.py runtime/units/launch/test_options.py runtime/files runtime/readers runtime/service runtime/net/test_client.py runtime/weights runtime/units/test_run.py \
	extract/detect/test_predict.py extract/formats/test_import_export.py extract/images/test_resize.py inference/load/test_load.py \
	pipelines/hard_negatives/test_kernel.py pipelines/filters/test_fitting.py pipelines/web/pages behaviour/test_arguments.py)
test-newest: ## the fast tests that meet other versions, with the newest of every dependency, in build/newest
	@test -n "$(PYTHON)" || { echo "vlmill needs Python 3.11 or newer; install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check 'uv>=0.7'
	$(NEWEST)/bin/uv pip install --quiet --python $(NEWEST)/bin/python --upgrade \
		$(if $(TORCH),--torch-backend $(TORCH)) --editable '.[$(EXTRAS)]'
	$(NEWEST)/bin/python -m pytest -q --numprocesses auto --maxprocesses 8 --dist loadfile -m "not slow" $(NEWEST_TESTS)

test-long: $(READY) ## 50 kills of every job, 1,000 mutated inputs of every kind, and the tests marked long (hours)
	$(TEST) --long --kills 50 --mutations 1000 tests/integration/test_kills.py tests/integration/test_mutations.py \
		tests/runtime/service/test_requests.py tests/extract/service/test_serve.py
	$(TEST) --long -m long

# -rs says why where there is no Java, Maven or way to its registry: all is SKIPPED then.
FLINK = $(BIN)/python -m pytest -q -rs --flink tests/flink

test-flink: $(READY) ## the jobs on a Flink cluster of this machine, through kills (needs Java 17 and Maven)
	$(FLINK) --long

test-flink-short: $(READY) ## web_pairs there, through one kill
	$(FLINK)

BENCHMARKS := world extract formats loader manifest models finetuning hard_negatives nearest_images retrieval search serve serve_similar learning learning_tasks reproduce detector_world tokenizer train_detector web_pairs workers growth crawl hostile_images
run_benchmarks = set -e; for name in $(BENCHMARKS); do \
	echo "\# benchmarks/$$name.py" >&2; $(BIN)/python benchmarks/$$name.py $(1); done

bench: $(READY) ## benchmarks in their short form, as JSON lines (two minutes each at most)
	@$(call run_benchmarks,)

bench-full: $(READY) ## the same as in benchmarks/RESULTS.md (over two hours on two idle cores)
	@$(call run_benchmarks,--full)

bench-resilience: $(READY) ## overload, hostile images and kills of a crawl, in one run (half an hour)
	$(BIN)/python benchmarks/resilience.py --full

bench-long: $(READY) ## what training teaches, every ablation over 3 seeds (hours; continues where it was)
	$(BIN)/python benchmarks/learning.py --full --ablations --output build/learning-ablations

reproduce: $(READY) ## the papers' ablations on a generated world: docs/reproduction.md (hours; continues); tables of README and RESULTS
	$(BIN)/python benchmarks/reproduce.py --full
	$(BIN)/python benchmarks/write_tables.py

gpu-check: $(READY) ## speed on this machine's GPU within nine minutes, as JSON lines; LONG=1: tests and all parts; PARTS="...": some of these (docs/install.md)
	$(BIN)/python -m benchmarks.gpu_check$(if $(LONG)$(PARTS),,.minutes) $(PARTS)

image: ## a container image that runs make demo
	docker build --file docker/demo.Dockerfile --tag vlmill-demo .

clean: ## remove what make demo and the tools left (keeps .venv)
	rm -rf demo build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
