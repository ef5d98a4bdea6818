PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
LINKED := $(VENV)/sources

.PHONY: demo test test-all lint lock audit clean FORCE

demo: $(LINKED)
	$(BIN)/probattn demo$(if $(LAYERS), --layers '$(LAYERS)')

test: $(LINKED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile

test-all: $(LINKED)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile -m ""

lint: $(LINKED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lock: $(INSTALLED)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --quiet --extra dev --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --custom-compile-command 'make lock' --output-file requirements-dev.txt

audit: $(INSTALLED)
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --disable-pip --no-deps --requirement requirements-dev.txt

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
