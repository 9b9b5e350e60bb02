# The two commands a newcomer needs are `make demo` and `make test`; both set everything up first.
.DEFAULT_GOAL := help
BIN := .venv/bin
READY := .venv/.ready
RUN ?= runs/demo

.PHONY: help setup demo test check format clean

help:
	@echo "make demo     optimise a real problem end to end (no GPU or API key needed)"
	@echo "make test     run every check: format, lint, types, import contracts, docs, tests"
	@echo "make setup    create .venv and install what both need"
	@echo "make format   format the code"
	@echo "make clean    remove .venv and the demo run"

setup: $(READY)

$(READY): pyproject.toml scripts/setup.sh
	bash scripts/setup.sh

demo: $(READY)
	rm -rf $(RUN)
	$(BIN)/cuda-agent optimize bias_gelu_softmax --out $(RUN)

test: check

check: $(READY)
	$(BIN)/python scripts/check.py

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf .venv $(RUN)
