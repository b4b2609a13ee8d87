# Everything runs in .venv, which is made once and again whenever the requirements change.
#   make demo PIP_ARGS="--index-url URL"
# passes arguments to pip, here an index from which torch comes without CUDA.
PYTHON ?= python3
PIP_ARGS ?=
WORKERS ?= 2
# Which benchmarks to run, such as evaluation, and options; all take hours, and with --quick a quarter of an hour.
BENCH ?=
# The tests whose line coverage is measured, by their markers.
COVERED ?= not slow and not hostile
# The least line coverage of these tests in percent; make coverage fails below it.
FLOOR ?= 90
# Options of make gpu, such as --out build/gpu.
GPU ?=
# How many runs of two processes test-cluster starts at the end, one after the other; empty: none.
RUNS ?=

BIN := .venv/bin
INSTALLED := .venv/.installed
PEERS := .venv/.peers-installed
INTEGRATIONS := .venv/.integrations-installed
CLUSTER := .venv/.cluster-installed
DOCUMENTATION := .venv/.docs-installed
# Whether make docs executes the notebooks: on or off.
NOTEBOOKS ?= on

# True in a Python that can do it; asked only when the environment is to be made.
works = $(shell $(PYTHON) -c "$(1)" >/dev/null 2>&1 && echo yes)
RECENT = import sys; sys.exit(sys.version_info < (3, 11))
VENV = import ensurepip, venv

# The tests start some hundred processes, which read bytecode rather than compile the package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-fast test-slow test-oldest test-newest test-wheel test-pages test-peers test-integrations test-extras test-cluster test-hostile coverage coverage-total bench gpu lint docs clean

demo: $(INSTALLED)
	$(BIN)/classwise demo

test: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS)

# Under 90 seconds on two cores.
test-fast: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not slow and not hostile"

# The others of make test.
test-slow: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "slow and not hostile"

# The fast tests, in an environment of its own: with the oldest supported versions, and with the newest there are.
test-oldest: VERSIONS := --constraint constraints-oldest.txt
test-oldest test-newest:
	$(PYTHON) -m venv --clear build/$@
	build/$@/bin/python -m pip install --quiet $(PIP_ARGS) --upgrade "pip>=25.1"
	build/$@/bin/python -m pip install --quiet $(PIP_ARGS) $(VERSIONS) --editable . --group test
	OMP_NUM_THREADS=1 build/$@/bin/python -m pytest -n $(WORKERS) -m "not slow and not hostile"

# The fast tests, the ten files with the lowest line coverage, and the total, which must reach the floor.
coverage: $(INSTALLED)
	$(BIN)/python -m coverage erase
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m "$(COVERED)" --cov --cov-report=
	@$(MAKE) --no-print-directory coverage-total

# The same of the last make coverage.
coverage-total: $(INSTALLED)
	$(BIN)/python -m coverage report --sort=cover --skip-covered | sed -n '1,12p'
	@total=$$($(BIN)/python -m coverage report --format=total --fail-under=$(FLOOR)); status=$$?; \
	if [ $$status != 0 ]; then echo "The line coverage is below the floor of $(FLOOR) %"; fi; \
	echo "Line coverage of the tests '$(COVERED)': $$total %"; exit $$status

# Builds the wheel, installs it with its requirements into an empty environment, and runs README's first example and two commands there.
test-wheel: $(INSTALLED)
	rm -rf build/wheel
	$(BIN)/python -m pip wheel --quiet $(PIP_ARGS) --no-deps --wheel-dir build/wheel .
	$(PYTHON) -m venv --clear --without-pip build/empty
	$(BIN)/python -m pip --python build/empty/bin/python install --quiet --no-compile $(PIP_ARGS) --constraint constraints.txt build/wheel/*.whl
	awk '/^```/ { if (inside) exit; inside = /python/; next } inside' README.md > build/wheel/example.py
	cd build/wheel && ../empty/bin/python example.py
	cd build/wheel && ../empty/bin/classwise train at --budget short --data digits --out run --epochs 1 --set model.width=0.0625
	cd build/wheel && ../empty/bin/classwise audit run --subset 40 --attack fgsm

# Pages of every kind in headless Chromium, with axe-core; skipped with the reason without Chromium, or npm to install it.
test-pages: $(INSTALLED)
	@npm install --silent --no-audit --no-fund --prefix build/browser axe-core@4.14.1 || echo "npm did not install axe-core"
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 tests/browser/check_pages.py

# Some five thousand hostile inputs, every kill, disk error and flipped bit, more examples of properties, and small simulations: an hour.
test-hostile: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.hostile --jobs $(WORKERS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m hostile tests/faults tests/stats
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --hypothesis-profile=many-examples tests/stats tests/core tests/threat

# Attacks beside those of other libraries.
test-peers: $(INSTALLED) $(PEERS)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) tests/attacks/test_peers.py

# With the packages of the extras; writes what they loaded, with versions.
test-integrations: $(INSTALLED) $(INTEGRATIONS)
	OMP_NUM_THREADS=1 COMPATIBILITY=docs/reference/compatibility.md $(BIN)/python -m pytest -n 0 tests/integrations

# What pip would install for each extra; torch must stay. Asks the package index, installs nothing.
test-extras: $(INSTALLED)
	$(BIN)/python -m tools.check_extras --out docs/reference/extras.md

# Real engines: tasks on Ray and on Slurm, whose workers, nodes and jobs are killed; with RUNS=100 also under torchrun.
test-cluster: $(INSTALLED) $(CLUSTER)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 0 tests/cluster
	$(if $(RUNS),OMP_NUM_THREADS=1 RUNS=$(RUNS) $(BIN)/python -m pytest -x tests/cluster/torchrun.py)

bench: $(INSTALLED) $(PEERS)
	$(BIN)/python -m benchmarks $(BENCH)

# With $(PYTHON) and its own PyTorch, not in .venv: parity with the CPU, tests and benchmarks, for at most eight minutes.
gpu: export PYTHONPATH := $(CURDIR)/src$(if $(PYTHONPATH),:$(PYTHONPATH))
gpu:
	@$(PYTHON) -m benchmarks.gpu $(GPU)

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m tools.check_structure

# The documentation site, in build/docs. Warnings are errors, and every local link of the site must have a target.
docs: $(INSTALLED) $(DOCUMENTATION)
	rm -rf build/docs
	OMP_NUM_THREADS=1 NOTEBOOKS=$(NOTEBOOKS) $(BIN)/python -m sphinx -q -E -W --keep-going -d build/doctrees docs build/docs
	$(BIN)/python -m tools.check_links build/docs

clean:
	rm -rf .venv

$(INSTALLED): pyproject.toml constraints.txt
	$(if $(call works,$(RECENT)),,$(error classwise needs Python 3.11 or later as $(PYTHON); install it, or give PYTHON=python3.12))
	$(if $(call works,$(VENV)),,$(error $(PYTHON) has no venv module; install it, for example with: apt install python3-venv))
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --constraint constraints.txt --editable . --group dev
	touch $@

# Without their own requirements, which ask for torchvision, and with it for another torch.
$(INTEGRATIONS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --constraint constraints.txt --no-deps --group integrations
	touch $@

# Ray and submitit; Debian's Slurm where this user may install it. Without it its tests are skipped.
$(CLUSTER): $(INSTALLED)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --constraint constraints.txt --no-deps --group cluster
	@if [ -x /usr/sbin/slurmctld ]; then :; \
	elif [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client >/dev/null; then :; \
	else echo "Slurm is not installed, and cannot be installed here: its tests are skipped"; fi
	touch $@

$(DOCUMENTATION): $(INSTALLED)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --constraint constraints.txt --group docs
	touch $@

# Without their own requirements: some of those are years old and would pull ours back.
$(PEERS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet $(PIP_ARGS) --constraint constraints.txt --no-deps --group peers
	touch $@
