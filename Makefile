PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := $(VENV)/installed-demo
DEV := $(VENV)/installed-dev
DOCS := $(VENV)/installed-docs
LOWEST := $(or $(TMPDIR),/tmp)/probattn-lowest

# The editable installation has a link for each source file: install again when their list has changed.
define link
@find probattn models inference experiments \( -name '*.py' -o -name '*.pyi' -o -name '*.toml' -o -path '*/templates/*' \) | LC_ALL=C sort > $(VENV)/sources.new
@test -d build && cmp -s $(VENV)/sources.new $(VENV)/sources || $(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
@mv $(VENV)/sources.new $(VENV)/sources
endef

.PHONY: demo docs tutorials test test-all lint types lock lowest audit clean

demo: $(DEMO)
	$(link)
	$(BIN)/probattn demo$(if $(LAYERS), --layers '$(LAYERS)')

test: $(DEV)
	$(link)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder

test-all: $(DEV)
	$(link)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n 2 --dist loadfile --no-loadscope-reorder -m ""

lint: $(DEV)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/budgets.py

types: $(DEV)
	$(link)
	cd build/__editable__.*/ && $(CURDIR)/$(BIN)/mypy --config-file $(CURDIR)/pyproject.toml --cache-dir $(CURDIR)/.mypy_cache
	$(BIN)/mypy --config-file tests/typing/mypy.ini

docs: $(DOCS)
	$(link)
	rm -rf docs/api/generated
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet docs docs/_build/html
	$(BIN)/python docs/check_links.py
	@echo "documentation: docs/_build/html/index.html"

tutorials: $(DOCS)
	$(link)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python docs/execute_tutorials.py

lock: $(DEV)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile pyproject.toml --quiet --extra dev --extra docs --universal --python-version 3.11 --upgrade \
		--generate-hashes --no-emit-index-url --custom-compile-command 'make lock' --output-file requirements-dev.txt

# The lowest version of each dependency: every module is imported, and a layer trained. About 6 GB, removed afterwards.
lowest: $(DEV)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv venv --quiet --clear --python 3.11 $(LOWEST)
	VIRTUAL_ENV=$(LOWEST) $(BIN)/uv pip install --quiet --resolution lowest-direct '.[all]'
	rm -rf build/lib build/bdist.*
	cd $(LOWEST) && bin/python -c "import importlib, pkgutil, probattn; \
		[importlib.import_module(found.name) for found in pkgutil.walk_packages(probattn.__path__, 'probattn.')]"
	cd $(LOWEST) && bin/probattn demo --epochs 3 --layers softmax
	rm -rf $(LOWEST)

audit: $(DEV)
	$(BIN)/python -m pip install --quiet pip-audit
	$(BIN)/pip-audit --disable-pip --no-deps --requirement requirements-dev.txt

clean:
	rm -rf $(VENV) build dist docs/_build docs/api/generated *.egg-info

$(DEMO): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade setuptools -e '.[cli]'
	touch $@

$(DEV): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade -e '.[dev]'
	touch $@

$(DOCS): pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --upgrade -e '.[docs]'
	mkdir -p $(VENV)/etc/ipython  # notebooks run on this machine: no warning that messages between processes are not encrypted
	echo "c.IPKernelApp.log_level = 'ERROR'" > $(VENV)/etc/ipython/ipython_kernel_config.py
	touch $@
