# make build     .venv with pinned dependencies, and the native libraries
# make serving   ge-serve, the server in C++; installs nghttp2 and others from Debian, as root
# make train     trains MovieLens-100K, then whole models on stock layers and on grouped lookups by
#                turns: examples/train_movielens.py and train_by_turns.py. RANKS=2 trains MovieLens
#                on two processes, DATA=train.csv a file in Criteo's format; the turns are then left
#                out. Builds no more than it needs: with one rank neither Horovod nor the module for
#                Python nor anything that serves models
# make test      the fast tests, on WORKERS processes: of each file all tests run in one of them.
#                CHANGED=1 runs what mirrors the files that differ from the branch's upstream, or
#                from the commit CHANGED=REF
# make test-all  every test but the soak; make test-rest what `make test` leaves out of them
# make test-tensorflow  of the fast tests those in which TensorFlow has a part
# make nightly   every test, the soak, the sanitizers and the fuzzers
# make fuzz      libFuzzer on what strangers send, SECONDS for each: heads, calls, JSON, tensors,
#                deltas, and answers of Redis
# make bench     the benchmarks
# make lint      what `make format` would change, and what ruff and mypy find
# make sanitize  the C++ tests under Address-, UndefinedBehavior- and ThreadSanitizer
# make docs      the documentation site, into build/site; `make docs-serve` shows it while it is written
# make wheel     wheels for PYTHONS, in dist/: one each, with a library for every TensorFlow
# make try-wheel installs them beside each TensorFlow and runs README's first program: docs/install.md
# make clean     removes what was built, keeps .venv
#
# Variables: TF=2.21.0 PYTHON=python3.12 work in .venv-2.21.0, beside the default's .venv. ARGS goes
# to the tool behind a target: make test ARGS="-k ragged", make train ARGS="--steps 100". Those that
# steer the native build (GROUP_EMBEDDING_CUDA_ARCHS, ...) are listed in docs/reference/environment.md.

DEFAULT_TF := 2.15.1
TF         ?= $(DEFAULT_TF)
PYTHON     ?= $(shell command -v python3.11 || echo python3)
PYTHONS    ?= 3.11 3.12
RANKS      ?= 1
DATA       ?=
ARGS       ?=
CHANGED    ?=
SECONDS    ?= 60
GPU        := $(shell nvidia-smi -L >/dev/null 2>&1 && echo yes)
# Tests on a GPU take turns. More than four processes would start more TensorFlows than they save time.
WORKERS    ?= $(if $(GPU),0,$(shell n=$$(nproc); echo $$((n < 4 ? n : 4))))

VENV   := .venv$(if $(filter-out $(DEFAULT_TF),$(TF)),-$(TF))
BIN    := $(CURDIR)/$(VENV)/bin
WHEELS := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/group_embedding/wheels

TENSORFLOW  := $(if $(GPU),tensorflow[and-cuda],tensorflow-cpu)==$(TF)
CONSTRAINTS := $(wildcard requirements/tensorflow-$(TF).txt)
SEVERAL     := $(filter-out 1,$(RANKS))
EXTENSIONS  := cc/serving cc/tf/serving cc/bindings
LIBRARY     := setup.py $(wildcard buildtools/*.py) \
               $(shell find cc $(EXTENSIONS:%=-path % -prune -o) \( -type d -o -name '*.[ch]*' \) -print)
NATIVE      := $(LIBRARY) $(shell find $(EXTENSIONS) -path cc/serving/server -prune -o \
               \( -type d -o -name '*.[ch]*' \) -print)
SERVER      := $(shell find cc/serving/server cc/table/file -type f) cc/serving/c_api/ge_serving.h buildtools/serving.py requirements/serving.sh
LAUNCH      := $(if $(SEVERAL),$(BIN)/horovodrun -np $(RANKS)) $(BIN)/python
SETTINGS    := MARCH=$(GROUP_EMBEDDING_MARCH) CUDA=$(GROUP_EMBEDDING_CUDA) ARCHS=$(GROUP_EMBEDDING_CUDA_ARCHS) GPU=$(GPU)

export TF_CPP_MIN_LOG_LEVEL ?= 2
export GROUP_EMBEDDING_MARCH GROUP_EMBEDDING_CUDA GROUP_EMBEDDING_CUDA_ARCHS
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: build serving train test test-tensorflow test-rest test-all nightly soak tested bench lint format sanitize fuzz docs docs-serve wheel try-wheel clean always

build: $(VENV)/native.stamp

train: $(if $(SEVERAL),$(VENV)/native.stamp $(VENV)/horovod.stamp,$(VENV)/ops.stamp)
	$(LAUNCH) examples/train_movielens.py $(if $(DATA),--data $(DATA)) $(ARGS)
	$(if $(SEVERAL)$(DATA),,$(BIN)/python examples/train_by_turns.py)

serving: build build/server/program.stamp

# Which tests each target runs, by their marks: see CONTRIBUTING.md.
test:      TESTS := not slow and not soak
test-rest: TESTS := slow and not soak
test-all:  TESTS := not soak
soak:      TESTS := soak
test-tensorflow: TESTS := not slow and not soak and not without_tensorflow

# A process that crashes ends the run: with another in its place pytest-xdist 3.8 waits for ever for
# files that nobody has (seen with --dist loadfile).
test test-tensorflow test-rest test-all soak: tested
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart 0 -m '$(TESTS)' \
	  --durations-file=build/durations/$@-$(TF).jsonl $(if $(filter test test-tensorflow,$@),,--file-budget=3600) \
	  $(MIRRORS) $(ARGS)

test: MIRRORS = $(if $(CHANGED),$(shell $(BIN)/python tests/support/session/changed.py \
                  $(filter-out 1,$(CHANGED))))

nightly: test-all soak sanitize
	$(MAKE) --no-print-directory fuzz SECONDS=300

# What tests run. Without its system libraries the server is left out, and its tests are skipped;
# likewise those of object stores, HDFS, Kafka and Redis.
tested: build $(VENV)/core_module.stamp $(VENV)/dev.stamp $(VENV)/horovod.stamp
	$(MAKE) --no-print-directory -j$(shell nproc) -C tests/cc build TF=$(TF)
	-$(MAKE) --no-print-directory build/server/program.stamp
	-$(MAKE) --no-print-directory $(VENV)/storage.stamp

bench: build $(VENV)/core_module.stamp $(VENV)/dev.stamp $(VENV)/horovod.stamp
	$(BIN)/python benchmarks/bench_lookup.py $(ARGS)
	$(BIN)/python benchmarks/bench_kernel.py $(ARGS)

CLANG_FORMAT = git ls-files -z -co --exclude-standard '*.cc' '*.cu' '*.h' '*.cuh' | xargs -0 $(BIN)/clang-format

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(CLANG_FORMAT) --dry-run -Werror
	$(BIN)/mypy

format: $(VENV)/dev.stamp
	-$(BIN)/ruff check --fix --quiet .
	$(BIN)/ruff format .
	$(CLANG_FORMAT) -i

sanitize: $(VENV)/dev.stamp
	$(MAKE) -j$(shell nproc) -C tests/cc run MODE=address
	$(MAKE) -j$(shell nproc) -C tests/cc run MODE=thread

fuzz:
	-$(MAKE) --no-print-directory build/server/program.stamp
	$(MAKE) -j$(shell nproc) -C tests/cc/fuzz build
	$(MAKE) -C tests/cc/fuzz run SECONDS=$(SECONDS)

docs: .venv-docs/dependencies.stamp
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

docs-serve: .venv-docs/dependencies.stamp
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs serve $(ARGS)

# GPUs of others: the architectures since Volta, as far as nvcc knows them (CUDA 13 has none below 75).
WHEEL_ARCHS := 70,75,80,90,100
wheel: export GROUP_EMBEDDING_CUDA_ARCHS := $(or $(GROUP_EMBEDDING_CUDA_ARCHS),$(WHEEL_ARCHS))
wheel: $(VENV)/bin/python
	$(BIN)/python -m buildtools.wheel $(PYTHONS) $(ARGS)

try-wheel: $(VENV)/bin/python
	$(BIN)/python -m buildtools.try_wheel --table --pythons $(PYTHONS) $(ARGS)

clean:
	rm -rf build dist *.egg-info .venv*/native.*
	rm -f group_embedding/ge-serve
	find group_embedding tests/support -name '*.so' -delete -o -name '_group_embedding_ops.*.json' -delete

# Two pips at a time would spoil an environment; compilers run side by side in any case.
.NOTPARALLEL:

# Each stamp is newer than what it was made from, so a second call does nothing twice. They lie
# inside the environment: who removes that removes them.

$(VENV)/bin/python:
	$(PYTHON) buildtools/versions.py $(TF)
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python's venv is missing: apt install python3-venv"; exit 1; }

$(VENV)/tensorflow.stamp: requirements/build.txt $(CONSTRAINTS) | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet -r requirements/build.txt
	$(BIN)/python -m pip install --quiet '$(TENSORFLOW)' $(addprefix -c ,$(CONSTRAINTS))
	echo $(CURDIR) > $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/group_embedding.pth
	touch $@

$(VENV)/horovod.stamp: requirements/horovod.txt requirements/horovod.sh $(VENV)/tensorflow.stamp
	$(BIN)/python -m pip install --quiet -r requirements/horovod.txt
	requirements/horovod.sh $(BIN)/python $(WHEELS)
	touch $@

$(VENV)/dev.stamp: requirements/dev.txt requirements/serving.txt $(VENV)/tensorflow.stamp
	$(BIN)/python -m pip install --quiet '$(TENSORFLOW)' -r requirements/dev.txt $(addprefix -c ,$(CONSTRAINTS))
	$(BIN)/python -m pip install --quiet --no-deps -r requirements/serving.txt
	touch $@

$(VENV)/storage.stamp: requirements/storage.txt requirements/hdfs.sh requirements/redis.sh $(VENV)/dev.stamp
	$(BIN)/python -m pip install --quiet -r requirements/storage.txt $(addprefix -c ,$(CONSTRAINTS))
	-requirements/redis.sh
	requirements/hdfs.sh $(BIN)/python
	touch $@

# Pages are made from Markdown and from docstrings as text: neither TensorFlow nor a build is needed.
.venv-docs/dependencies.stamp: requirements/docs.txt
	$(PYTHON) -m venv .venv-docs || { rm -rf .venv-docs; echo "python's venv is missing: apt install python3-venv"; exit 1; }
	.venv-docs/bin/python -m pip install --quiet -r requirements/docs.txt
	touch $@

# The server is the same for all TensorFlows: it is built once, with the messages of the first.
build/server/program.stamp: $(SERVER) | $(VENV)/tensorflow.stamp
	requirements/serving.sh
	$(BIN)/python -m buildtools.serving
	touch $@

# Rewritten only when a variable that steers the native build has changed, or a GPU was added.
$(VENV)/native.settings: always | $(VENV)/tensorflow.stamp
	@echo '$(SETTINGS)' | cmp -s - $@ || echo '$(SETTINGS)' > $@

# The libraries: the core and the ops, which are all that one process needs to train; all of them.
$(VENV)/ops.stamp: $(VENV)/tensorflow.stamp $(VENV)/native.settings $(LIBRARY)
	$(BIN)/python setup.py --quiet build_ext --inplace --ops-only
	touch $@

$(VENV)/native.stamp: $(VENV)/tensorflow.stamp $(VENV)/native.settings $(NATIVE)
	$(BIN)/python setup.py --quiet build_ext --inplace
	touch $@ $(VENV)/ops.stamp

# The core for tests and benchmarks.
$(VENV)/core_module.stamp: $(VENV)/native.stamp $(wildcard tests/cc/python/*)
	$(BIN)/python -m buildtools.core_module
	touch $@
