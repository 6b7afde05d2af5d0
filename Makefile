# make demo    set up, then run a training job through a reclaim, a silent loss and a preemption, and compare it with an undisturbed one
# make test    set up, then run all tests
# make lint    format, style and types
# make bench   set up, then run the benchmarks
# make man     set up, then write the man pages into .work/man/man1
.PHONY: demo test lint bench man setup setup-test clean
PYTEST_ARGS ?=

setup:
	@.ci/setup

setup-test:
	@.ci/setup test

demo: setup
	@.venv/bin/python examples/demo.py

test: setup-test
	@.ci/tests $(PYTEST_ARGS)

lint: setup-test
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy

man: setup
	@.venv/bin/spotburst man .work/man/man1

bench: setup-test
	@.venv/bin/python -m tests.bench

clean:
	rm -rf .venv .work .pytest_cache .mypy_cache .ruff_cache .hypothesis
