PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# One thread for each test process; more only get in each other's way.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 8

.PHONY: help venv maniskill demo test test-fast test-all lint types format clean

help:
	@echo "make demo      train RN-D for about three minutes; leaves a learning curve and a video"
	@echo "make test      run the tests (make test-all: also the slow ones)"
	@echo "make test-fast run the tests that start no processes: under 90 seconds, for daily work"
	@echo "make lint      ruff: rules and formatting"
	@echo "make types     mypy, strict"
	@echo "make format    let ruff repair what it can"
	@echo "make maniskill install ManiSkill into $(VENV), and on Debian (as root) the Vulkan driver it needs"
	@echo "make venv      only build $(VENV) (the others do it when needed)"
	@echo "make clean     remove $(VENV) and everything built"

venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "Detent needs Python 3.11 or newer; there is no '$(PYTHON)' here. Install it, or name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "Detent needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1). Name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
		echo "'$(PYTHON)' cannot make virtual environments; on Debian or Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev,ray,sb3,tensorboard]'
	@touch $@

maniskill: venv
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[maniskill]'
	./scripts/install_vulkan_driver.sh
	$(BIN)/detent doctor

demo: venv
	$(BIN)/python examples/demo.py

test: venv
	$(PYTEST)

test-fast: venv
	$(PYTEST) -m "not slow and not processes"

test-all: venv
	$(PYTEST) -m ""

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .pytest_cache .ruff_cache
	find src tests examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
