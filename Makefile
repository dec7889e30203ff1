# `make demo` and `make test` set everything up by themselves, in .venv; nothing is repeated that has not changed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE = $(shell find csrc -name '*.cpp' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh')

.PHONY: install demo test lint format bench gpu docs clean

install: $(VENV)/.installed

# What the build needs comes first, at the version that pyproject.toml pins: without isolation, objects are kept.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $$($(BIN)/python -c \
	  "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['build-system']['requires'])")
	touch $@

# Folders count too: their times change when a file goes.
$(VENV)/.installed: $(VENV)/.ready setup.py $(shell find csrc)
	$(BIN)/pip install --quiet --no-build-isolation --editable '.[demo,docs,lint,test]'
	touch $@

demo: install
	$(BIN)/python -m perf.demo

test: install
	$(BIN)/python -m pytest -rs --durations=15

lint: install
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/clang-format --dry-run -Werror $(NATIVE)

format: install
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(NATIVE)

bench: install
	$(BIN)/python -m perf.bench

# On a machine with a GPU and nvcc, with the Python that is there: no network, no .venv. OUT= a folder, STAGES= some.
gpu:
	$(PYTHON) -m perf.gpu $(if $(OUT),--out '$(OUT)') $(if $(STAGES),--stages $(STAGES)) $(if $(QUICK),--quick)

docs: install
	$(BIN)/python -m mkdocs build --strict --config-file .mkdocs.yml

clean:
	rm -rf $(VENV) build dist site *.egg-info rnnkern/*.so
