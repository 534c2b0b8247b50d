# From a clone to a training run: `make demo`. To the test suite: `make test`. Python 3.11 or later, pip and make.
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PRECIOUS: %/samples.sqlite
.DEFAULT_GOAL := help
.PHONY: help ready demo test test-slow test-frameworks test-all test-long test-tiers full azurite soak bench bench-quick gpu lint docs clean

# Else each process, and the tests start thousands, would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

VENV ?= .venv
# Python 3.11 is what is tested with torch; a later one is taken where there is none.
PYTHON ?= $(firstword $(foreach name,python3.11 python3 python,$(shell $(name) -c 'print("$(name)")' 2>/dev/null)))
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -qq --disable-pip-version-check
# The version that the README's figures were measured with. Elsewhere than on 3.11 pip chooses.
TORCH ?= torch==2.13.0
# Pairs with that torch; its compiled operators do not load beside a CPU torch, and its transforms do without them.
TORCHVISION ?= torchvision==0.29.1
EXTRAS ?= dev docs demo test
space := $(subst :,,: :)
extras = $(subst $(space),$(shell echo ,),$(strip torch $(EXTRAS)))
# What installing compiles.
NATIVE := hatch_build.py $(wildcard src/stoker/_core/native/*.[ch])
PHOTOS ?= build/photos
IMAGES ?= 4000
DEMO_ARGS ?=
PYTEST_ARGS ?=
SECONDS := 1800
SOAK_ARGS ?=
# A fork copies page tables: with torch loaded, and its heap in pages of 4 KiB, those take three quarters of its time.
test test-slow test-frameworks test-all test-long test-tiers: export GLIBC_TUNABLES := glibc.malloc.hugetlb=1
# Many tests wait for processes of theirs, or for a time, so one more runs at once than there are CPUs, up to a few.
TOGETHER := -n $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) < 4 ? $$(getconf _NPROCESSORS_ONLN) + 1 : 4))) --dist worksteal
BENCHMARKS := transport overhead start memory columns small_shm small_memory by_turns images order resume order_cost rows tokens dicts ragged tar streams where auto
BENCHMARKS += workloads installed install_auto first_suggestions latency first_batch chaos recovery supervision supervisor bridge pools jpeg photographs image_folder
# Sources, beside the libraries of each format; of an hour or more all together.
SOURCES := formats parquet stores arrays lines sql object_storage shuffled_epochs
BENCHMARKS += $(SOURCES)
# Those of which a short form says something beside torch's loader, in 5 minutes.
QUICK := $(filter-out $(SOURCES) memory by_turns where resume order_cost streams auto install_auto first_suggestions latency chaos recovery supervision supervisor bridge pools workloads jpeg image_folder,$(BENCHMARKS))
# Another interpreter with Stoker in it, for one case more: make bench PYTHON312=...
PYTHON312 ?=
# And one with TensorFlow in it, for tf.data: make bench TENSORFLOW=...
TENSORFLOW ?=
# Checkouts of pytorch/examples and others, for scripts/published_scripts.py: make full REPOSITORIES=...
REPOSITORIES ?=
bench_images := --data $(PHOTOS) $(if $(TENSORFLOW),--tensorflow $(TENSORFLOW))
bench_jpeg := --data $(PHOTOS)
# And one with DALI: make bench DALI=...
DALI ?=
bench_photographs := --data $(PHOTOS) $(if $(TENSORFLOW),--tensorflow $(TENSORFLOW)) $(if $(DALI),--dali $(DALI))
bench_transport := $(if $(TENSORFLOW),--tensorflow $(TENSORFLOW))
bench_first_batch := --data $(PHOTOS)
bench_by_turns := --data $(PHOTOS)
bench_order_cost := --data $(PHOTOS)
bench_supervision := --data $(PHOTOS)
bench_auto := --data $(PHOTOS)
bench_memory := $(if $(PYTHON312),--python312 $(PYTHON312))

help:
	@echo 'make demo    train a small network on 4,000 photographs, and compare with the loader of torch'
	@echo 'make test    the quick tests, in 5 minutes on 2 CPUs'
	@echo 'make test-slow   all other tests: clean interpreters, examples, benchmarks and pages as programs, the fault matrix'
	@echo 'make test-frameworks   Lightning, Accelerate, Transformers, Hugging Face datasets, Ignite, and libraries with threads'
	@echo 'make test-all   these three'
	@echo 'make test-long   properties with many more cases, for 10 minutes'
	@echo 'make full    everything that is too long for CI: test-long, all cases marked long, a real browser, emulators of stores, the frameworks in environments of their own'
	@echo 'make soak    random faults, loaders and resumes for 30 minutes; `make soak SECONDS=60` for one'
	@echo 'make bench   all measurements against the loader of torch, for some minutes; `make bench-quick` is shorter'
	@echo 'make gpu     what only a GPU can show: tests and rates, in under 8 minutes (GPU_FAKE=1: a dry run on the CPU)'
	@echo 'make lint    ruff, and mypy in its strict mode'
	@echo 'make docs    the documentation, into build/site'
	@echo 'make clean   remove what these commands made'

demo: $(VENV)/.demo $(PHOTOS)/samples.sqlite
	$(BIN)/python examples/train_images.py --data $(PHOTOS) $(DEMO_ARGS)

test: $(VENV)/.demo $(VENV)/.test $(VENV)/.torchvision
	$(BIN)/python -m pytest $(TOGETHER) --durations=10 $(PYTEST_ARGS)

test-slow: $(VENV)/.demo $(VENV)/.test $(VENV)/.torchvision
	$(BIN)/python -m pytest --tier=slow $(TOGETHER) $(PYTEST_ARGS)

WHICH ?= not long and not slow
# What needs torch alone is left out: `make test` and `make test-slow` run it. Ray comes first, so that its tests stay in
# one process and share one cluster.
test-frameworks: $(VENV)/.test $(VENV)/.frameworks
	$(BIN)/python -m pytest -m '$(WHICH)' $(TOGETHER) $(PYTEST_ARGS) tests/_engine/machines/test_ray.py \
		tests/loader/test_frameworks.py tests/loader/test_resuming_elsewhere.py \
		tests/_engine/serialize/test_pickler.py::test_arrow_and_pandas_go_beside_the_pickle \
		tests/_engine/process/test_native_libraries.py tests/integrations tests/collate/test_graph.py \
		tests/pinned/test_pickles.py --ignore-glob='*/test_installed_*' --ignore-glob='*/test_install_[ciwr]*' \
		--ignore-glob='*/test_checkpoint_ranks.py' --ignore-glob='*/test_distributed.py'

test-all: test-slow test-frameworks test

# What each case costs, for tests/tiers.py: half an hour on a quiet machine. Of the files with newer tests alone:
# make test-tiers PYTEST_ARGS="$(git diff --name-only --diff-filter=d COMMIT_OF_THE_RECORD -- 'tests/*test_*.py' | xargs)"
test-tiers: $(VENV)/.demo $(VENV)/.test $(VENV)/.torchvision
	rm -rf build/tiers
	-$(BIN)/python -m pytest -m 'not long and not slow' $(TOGETHER) --record-tiers=build/tiers $(PYTEST_ARGS)
	$(BIN)/python -m tests.tiers build/tiers

# Order, sharding and resume with many more cases, other ones each time, and the tests that are marked long: 10 minutes.
test-long: $(VENV)/.demo $(VENV)/.test
	$(BIN)/python -m pytest -m 'long or not slow' --hypothesis-profile=long --timeout 600 $(TOGETHER) \
		tests/loader tests/samplers tests/datasets tests/_engine/supervision tests/benchmarks $(PYTEST_ARGS)

# For an hour and some gigabytes. Chromium is the system's: apt install chromium.
full: test-long $(VENV)/.browser $(VENV)/.test-full azurite
	$(BIN)/python -m pytest -m long --timeout 600 tests --ignore=tests/loader --ignore=tests/samplers --ignore=tests/datasets \
		--ignore=tests/benchmarks --ignore=tests/_engine/supervision $(PYTEST_ARGS)
	$(MAKE) test-frameworks VENV=build/full/frameworks WHICH=long
	$(BIN)/python -m pytest tests/sources/test_cloud_stores.py tests/sources/hdf5/test_raw_chunks.py $(PYTEST_ARGS)
	$(BIN)/python scripts/frameworks_matrix.py build/full
	$(if $(REPOSITORIES),$(BIN)/python scripts/published_scripts.py $(REPOSITORIES) build/published)
	$(if $(REPOSITORIES),$(BIN)/python scripts/others_tests.py $(REPOSITORIES) build/others)

# Another seed each time, which it says. To do a run again: make soak SOAK_ARGS='--seed 7 --run 123 --times 20'
soak: $(VENV)/.test
	$(BIN)/python tests/soak --seconds $(SECONDS) $(SOAK_ARGS)

bench: $(VENV)/.demo $(VENV)/.bench $(VENV)/.torchvision $(PHOTOS)/samples.sqlite
	$(foreach name,$(BENCHMARKS),$(BIN)/python benchmarks/$(name).py $(bench_$(name)) --json benchmarks/results/$(name).json &&) true
	$(BIN)/python benchmarks/report.py

gpu:
	PYTHON=$(or $(wildcard $(BIN)/python),python3) scripts/gpu.sh

bench-quick: $(VENV)/.demo $(VENV)/.bench $(PHOTOS)/samples.sqlite
	$(foreach name,$(QUICK),$(BIN)/python benchmarks/$(name).py $(bench_$(name)) --quick &&) true

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

clean:
	rm -rf build
	if [ -e $(VENV)/.made ]; then rm -rf $(VENV); fi

# Debian and its kin ship Python without ensurepip: there the system's own pip fills the environment.
$(VENV)/.made:
	@test -n '$(PYTHON)' || { echo 'no Python found: install Python 3.11, or name one: make PYTHON=...'; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	@echo 'making an environment in $(VENV) ...'
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || { $(PYTHON) -m venv --clear --without-pip $(VENV) && \
		$(PYTHON) -m pip --python $(BIN)/python install -qq pip; }
	@touch $@

$(VENV)/.torch: $(VENV)/.made
	@echo 'installing torch ...'
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then $(PIP) '$(TORCH)'; fi
	@touch $@

# Not in the environment of the frameworks, some of which import it whole.
$(VENV)/.torchvision: $(VENV)/.torch
	@if $(BIN)/python -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then $(PIP) --no-deps '$(TORCHVISION)'; fi
	@touch $@

# One environment, to which each command adds what it needs.
$(VENV)/.demo $(VENV)/.test $(VENV)/.frameworks $(VENV)/.bench $(VENV)/.dev $(VENV)/.docs $(VENV)/.browser $(VENV)/.test-full: $(VENV)/.%: $(VENV)/.torch pyproject.toml $(NATIVE)
	@echo 'installing stoker[torch,$*] ...'
	@$(PIP) -e '.[torch,$*]'
	@touch $@

# What several commands add, at once, as .ci/run does: each installation compiles, and solves the dependencies anew.
ready: $(VENV)/.torch
	@echo 'installing stoker[$(extras)] ...'
	@$(PIP) -e '.[$(extras)]'
	@touch $(EXTRAS:%=$(VENV)/.%)

# The emulator of Azure's store: build/azurite. Where npm is missing, tests that need it say so.
azurite:
	@[ -e build/azurite/node_modules/.bin/azurite-blob ] || \
		npm install --prefix build/azurite --no-audit --no-fund --silent azurite || \
		echo 'npm cannot install Azurite: tests of Azure are skipped. apt install npm'

# The script knows by itself whether the photographs are complete.
$(PHOTOS)/samples.sqlite: | $(VENV)/.demo
	$(BIN)/python examples/make_photos.py --data $(PHOTOS) --images $(IMAGES)
