# `make demo` does the main job on real photos, `make test` runs the tests; each sets up all it needs.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/installed

.PHONY: demo test lint types bench clean

demo: $(STAMP)
	$(BIN)/python examples/demo.py

test: $(STAMP)
	$(BIN)/python -m pytest

lint: $(STAMP)
	$(BIN)/ruff check .

types: $(STAMP)
	mkdir -p $(VENV)/types && ln -sfn ../.. $(VENV)/types/pipec
	MYPYPATH=$(VENV)/types $(BIN)/mypy -p pipec

bench: $(STAMP)
	$(BIN)/python -m benchmarks W1

$(STAMP): pyproject.toml constraints.txt kernels/jpegregion.c kernels/parquetpages.c kernels/sound.c runtime/handover.c runtime/giver.c runtime/handover.h
	$(PYTHON) -c 'import sys; sys.exit("pipec needs Python 3.11 or newer; say `make PYTHON=python3.11 …`" if sys.version_info < (3, 11) else 0)'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[torch,demo,dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) build *.egg-info demo-data
