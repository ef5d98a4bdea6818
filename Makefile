PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
LINKED := $(VENV)/sources

.PHONY: demo test test-all lint clean FORCE

demo: $(LINKED)
	$(BIN)/probattn demo$(if $(LAYERS), --layers '$(LAYERS)')

test: $(LINKED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

test-all: $(LINKED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m ""

lint: $(LINKED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf $(VENV) build dist *.egg-info

$(INSTALLED): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade -e '.[dev]'
	touch $@

# The editable installation has a link for each source file: install again when their list has changed.
$(LINKED): $(INSTALLED) FORCE
	@find probattn models inference experiments \( -name '*.py' -o -path '*/templates/*' \) | LC_ALL=C sort > $@.new
	@test -d build && cmp -s $@.new $@ || $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	@mv $@.new $@

FORCE:
