# Every target sets itself up: it makes $(VENV), installs what pyproject.toml asks for at the versions in
# constraints.txt, and leaves a stamp, so that the next call installs nothing.
#
#   make demo PYTHON=/usr/bin/python3.12              another interpreter
#   make test VENV=/tmp/venv                          another environment
#   make demo PIP_FLAGS="--find-links wheels"         more options for pip, such as a folder of wheels
#   make test PYTEST_FLAGS="-k corpus -x"             more options for pytest
#   make test TEST_WORKERS=8                          more processes that test, each on one core

VENV ?= .venv
PIP_FLAGS ?=
PYTEST_FLAGS ?=
TEST_WORKERS ?= 4
NO_SCRIPTS := harness corpora labelled peers cutting on_gpu/% pretraining/growing_step pretraining/growth_plot \
	pretraining/varied_text pretraining/pretraining_sides pretraining/pretraining_slice pretraining/plain_loop \
	pretraining/accuracy_plot finetuning/trainer finetuning/trainer_answers finetuning/trainer_tasks serving/load \
	serving/serving_app mirror/mirror_peers
BENCH ?= $(filter-out $(NO_SCRIPTS:%=bench/%.py),$(sort $(wildcard bench/*.py bench/*/*.py)))
NO_DATA := 3# the status of a script of bench/ that lacks data (bench/harness.py)
BIN := $(VENV)/bin

# The first interpreter that really runs (a version manager's shim may exist and fail), is of a version that
# has wheels for everything, and can make an environment.
USABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info < (3, 15))
PYTHON ?= $(firstword $(foreach name,python3 python3.13 python3.12 python3.11,\
	$(shell $(name) -c '$(USABLE)' >/dev/null 2>&1 && echo $(name))))

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo docs test test-slow lint check format bench peers dist run-wheel

help:
	@echo "make demo       install, then raw text -> vocabulary -> a small BERT -> report, in about ten minutes"
	@echo "make docs       the documentation as a site, in build/site"
	@echo "make test       the tests"
	@echo "make test-slow  the long trials as well: kills, resumes, memory ceilings, speeds"
	@echo "make check      format, lint, types, import directions"
	@echo "make format     let ruff rewrite the files"
	@echo "make bench      the side-by-side measurements in bench/ (BENCH=bench/<folder>/<name>.py for one)"
	@echo "make dist       an sdist and a wheel with the compiled kernels, in dist/"
	@echo "make run-wheel  the wheel bertsmith-run, without torch, in dist/"
	@echo "make peers      environments for the peers that contradict the others, which make bench then measures too"

demo: $(VENV)/.base
	$(BIN)/bertsmith quickstart

docs: $(VENV)/.docs
	$(BIN)/python -m mkdocs build --strict --quiet
	@echo "build/site/index.html is the site. To search in it: $(BIN)/python -m http.server -d build/site"

# The tests force thousands of small files to disk: in memory, where there are 6 GB of it, that takes no time.
IN_MEMORY := $(shell grep ' /dev/shm ' /proc/mounts 2>/dev/null | grep -qv noexec && \
	test "$$(df -Pk /dev/shm | awk 'NR == 2 {print $$4}')" -gt 6000000 && echo TMPDIR=/dev/shm)

test: $(VENV)/.dev
	$(IN_MEMORY) $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist worksteal $(PYTEST_FLAGS)

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not cuda" --timeout 3600 $(PYTEST_FLAGS)

lint: $(VENV)/.dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check --no-cache .
	$(BIN)/mypy --num-workers auto

check: lint
	$(BIN)/python -m pytest tests/test_layers.py

format: $(VENV)/.dev
	$(BIN)/ruff check --no-cache --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.bench
	@failed= skipped=; for script in $(BENCH); do \
		echo "== $$script"; $(BIN)/python $$script; \
		case $$? in 0) ;; $(NO_DATA)) skipped="$$skipped $$script" ;; *) failed="$$failed $$script" ;; esac; \
	done; \
	test -z "$$skipped" || echo "Skipped, for want of ../shared/data:$$skipped"; \
	test -z "$$failed" || { echo "Failed:$$failed" >&2; exit 1; }

# Fails where the kernels were not compiled, and where auditwheel finds that the wheel's tag promises too much.
dist: $(VENV)/.dist
	rm -rf dist
	$(BIN)/python -m build
	$(BIN)/python -m auditwheel show dist/*-manylinux_*.whl | tee dist/auditwheel.txt
	@grep -qF "\"$$(basename dist/*.whl .whl | cut -d- -f5)\"" dist/auditwheel.txt && rm dist/auditwheel.txt

run-wheel: $(VENV)/.dist
	$(BIN)/python run_wheel.py dist

# An environment each, with the torch that constraints.txt names: its latest may be gigabytes of CUDA.
TORCH = $(shell grep ^torch== constraints.txt)
NEEDS_onnx = "sentence-transformers[onnx]" $(TORCH)
NEEDS_openvino = "sentence-transformers[openvino]" $(TORCH)
NEEDS_infinity = "infinity-emb[torch,server]" $(TORCH)
NEEDS_tracer = tracer-llm==0.3.3
NEEDS_stuntd = stuntd==0.2.1 transformers $(TORCH)
peers: $(patsubst %,runs/peers/%/.installed,onnx openvino infinity tracer stuntd)

runs/peers/%/.installed:
	$(PYTHON) -m venv runs/peers/$*
	runs/peers/$*/bin/pip install --disable-pip-version-check $(PIP_FLAGS) $(NEEDS_$*)
	runs/peers/$*/bin/pip uninstall --quiet --yes torchvision # for pictures, and often of another torch
	@touch $@

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "Bertsmith needs Python 3.11 to 3.14 with its venv module, and none was \
	found. Install one (Debian: apt install python3-venv) or name it: make PYTHON=/path/to/python3" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	@# A later pip takes half the time of the one that comes with Python; without it, that one does.
	@$(BIN)/python -m pip install --quiet $(PIP_FLAGS) --upgrade pip 2>/dev/null || true

# What an installation is made of besides the Python files, which it reads where they are.
INSTALLED := pyproject.toml constraints.txt hatch_build.py $(wildcard src/bertsmith/model/cpu/kernels/*.[ch])
# A module is compiled when it is first imported: of all that is installed, most never is.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/pip install --disable-pip-version-check --no-compile $(PIP_FLAGS) \
	--constraint constraints.txt --editable

$(VENV)/.base: $(INSTALLED) | $(BIN)/pip
	$(INSTALL) .
	@touch $@

# What packs needs neither torch nor Bertsmith.
$(VENV)/.dist: constraints.txt | $(BIN)/pip
	$(BIN)/pip install --disable-pip-version-check $(PIP_FLAGS) --constraint constraints.txt build auditwheel hatchling
	@touch $@

# The larger sets contain smaller ones, so they mark these as installed too.
$(VENV)/.docs: $(INSTALLED) | $(BIN)/pip
	$(INSTALL) ".[docs]"
	@touch $(VENV)/.base $@

$(VENV)/.dev: $(INSTALLED) | $(BIN)/pip
	$(INSTALL) ".[dev]"
	@touch $(VENV)/.base $(VENV)/.docs $@

$(VENV)/.bench: $(INSTALLED) | $(BIN)/pip
	$(INSTALL) ".[bench]"
	@touch $(VENV)/.base $@
