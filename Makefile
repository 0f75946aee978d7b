# Everything installs what it needs from nothing into .venv, with the pinned versions of constraints.txt.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
# veRL pins an older transformers than ours; what its pure functions import is in the extra "peers".
VERL   := 0.9.1
export OMP_NUM_THREADS := 1
export HF_HUB_OFFLINE := 1

.PHONY: demo test quick lint docs soak mutants parity headline lab clean

demo: $(STAMP)
	$(BIN)/trimtab train quickstart

# Processes are killed and timed in chaos and e2e: they run alone.
test: $(DEV) lint
	$(BIN)/pytest -n 2 -m "not soak and not parity" -p no:cacheprovider tests/unit tests/property
	$(BIN)/pytest -m "not soak and not parity" -p no:cacheprovider tests/e2e tests/chaos

quick: $(DEV)
	$(BIN)/pytest -n 2 -m "not slow and not soak and not parity and not chaos" tests/unit tests/property

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The two pages that are made from the code.
docs: $(STAMP)
	$(BIN)/trimtab config reference > docs/configuration.md
	$(BIN)/trimtab metrics > docs/metrics.md

# One seed on two cores; `trimtab lab run collapse` takes the five that its table is made of.
headline: $(STAMP)
	$(BIN)/trimtab lab run collapse --seeds 1 --jobs 2

lab: headline
	$(BIN)/trimtab lab run ablation --seeds 1 --jobs 2

soak: $(DEV)
	$(BIN)/pytest -m soak -s

mutants: $(DEV)
	$(BIN)/python -m tests.mutants

parity: $(DEV)
	$(BIN)/pip install -q -c constraints.txt -e ".[all,peers]"
	$(BIN)/pip install -q --no-deps verl==$(VERL)
	$(BIN)/pytest -m parity -p no:cacheprovider tests/parity

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q -c constraints.txt -e ".[all]"
	touch $@

$(DEV): $(STAMP)
	$(BIN)/pip install -q -c constraints.txt -e ".[all,dev]"
	touch $@

clean:
	rm -rf $(VENV) build dist
