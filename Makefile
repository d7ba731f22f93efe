# make gate    set everything up and run the gate, base against base, on a real engine
# make test    set everything up, lint, and run the tests of every change
# make slow    set everything up, and run the tests that take minutes each
# make drill   set everything up, and test the gate itself with plants on a real engine

PYTHON ?= python3
ENGINE ?= .engine
FUZZ_SECONDS ?= 60
# About 85 are taken on two idle cores. It ends before the nightly job does, which would lose the board.
DRILL_MINUTES ?= 120
MUTANT_MINUTES ?= 120
JUDGING := $(wildcard perfgate/judge/[a-z]*.py perfgate/stats/[a-z]*.py)
IN_TURN = $(shell expr $$(date +%s) / 86400 % $(words $(JUDGING)) + 1)
MUTATED ?= perfgate.judge.rule.* perfgate.stats.sequential.* $(subst /,.,$(basename $(word $(IN_TURN),$(JUDGING)))).*
# `debian` in CI: a person's system is left as it is.
TOOLS ?=
ENGINE_PYTHON ?= $(ENGINE)/bin/python
WORKFLOWS := $(wildcard .github/workflows/*.yml perfgate/templates/github/*.yml)
ACTIONS := action.yml $(wildcard .github/actions/*/action.yml)
FORMS := $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
# A worker more than there are cores: many tests wait for processes. Which tests are long is known only as they run.
PYTEST = .venv/bin/pytest --dist worksteal
WORKERS ?= $(shell expr $$(nproc) + 1)
WITH_ENGINE = PERFGATE_ENGINE_PYTHON=$(abspath $(ENGINE_PYTHON)) $(PYTEST)
PIP := .venv/bin/python -m pip --quiet --disable-pip-version-check
# Rooms whose tests need neither an engine nor a program that TOOLS brings, and start few processes; they take about as
# long on one core as the engine's environment takes to be made.
FIRST := $(addprefix tests/,counters judge metrics record scenario stats)

# Images often set it, and then every one of the hundreds of processes of the tests compiles perfgate anew: a start of 1.8 s
# instead of 0.6 s.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: gate test lint size first unit end-to-end slow mutants drill engine debian fuzz golden docs screenshots lock clean

gate: .venv/ready engine
	.venv/bin/perfgate run scenarios/cpu-tiny.yaml \
	  --base python=$(abspath $(ENGINE_PYTHON)) --head python=$(abspath $(ENGINE_PYTHON))

# The engine's environment and what TOOLS names are fetched while ours is made, lint runs and the first tests do. All
# other tests with and without an engine are one call: the one kind fills the cores that the other leaves idle.
test:
	$(MAKE) --no-print-directory --jobs 4 lint engine first $(TOOLS)
	$(WITH_ENGINE) -n $(WORKERS) -m "not gpu and not slow" $(addprefix --ignore=,$(FIRST))

# Before them pytest reads all tests once: it compiles them, which each worker would do at the same time.
first: .venv/ready
	.venv/bin/pytest -q --collect-only | tail -n 1
	.venv/bin/pytest -q -m "not engine and not gpu and not slow" $(FIRST)

lint: .venv/ready size
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/zizmor --quiet --pedantic --offline $(WORKFLOWS) $(ACTIONS) .github/dependabot.yml
	.venv/bin/check-jsonschema --builtin-schema vendor.github-workflows $(WORKFLOWS)
	.venv/bin/check-jsonschema --builtin-schema vendor.github-actions $(ACTIONS)
	.venv/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	.venv/bin/check-jsonschema --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	.venv/bin/check-jsonschema --builtin-schema vendor.github-issue-forms $(FORMS)
	.ci/actionlint $(WORKFLOWS)

# How large each part is; more than .ci/limits.toml allows is an error.
size:
	$(PYTHON) .ci/size

unit: .venv/ready $(TOOLS)
	$(PYTEST) -n $(WORKERS) -m "not engine and not gpu and not slow"

end-to-end: .venv/ready engine $(TOOLS)
	$(WITH_ENGINE) -n 2 -m "engine and not slow"

slow: .venv/ready engine $(TOOLS)
	$(WITH_ENGINE) -n 2 -m slow

# Small changes of the rule, of the looks, and of one more module of the judge or the statistics each day; those that no
# test notices are in mutants.txt. MUTATED="perfgate.stats.rates.*" takes others.
mutants: .venv/ready
	$(PIP) install --group mutants
	-timeout --signal INT $(MUTANT_MINUTES)m .venv/bin/mutmut run $(MUTATED)
	.venv/bin/mutmut results > mutants.txt
	sed "s/.*: //" mutants.txt | sort | uniq -c

# Is the gate still able to see: every plant that runs on a CPU must be caught, and the build itself must not be blocked.
drill: .venv/ready engine
	.venv/bin/perfgate drill drills/cpu.yaml --base python=$(abspath $(ENGINE_PYTHON)) --budget $(DRILL_MINUTES) \
	  --output board.md --output board.json

# An interpreter given as ENGINE_PYTHON is used as it is.
engine:
	test -x $(ENGINE_PYTHON) -a $(ENGINE_PYTHON) != $(ENGINE)/bin/python || $(PYTHON) .ci/engine-env $(ENGINE)

# What tests use where Debian has it: a real nsys and a browser.
debian:
	.ci/debian

# Other inputs for the readers of what comes from outside, by structure and guided by the code they reach.
fuzz: .venv/ready
	$(PIP) install --group fuzz
	HYPOTHESIS_PROFILE=fuzz .venv/bin/pytest tests/trace/test_trace_fuzz.py tests/house/test_hostile_inputs.py
	.venv/bin/python benchmarks/fuzz.py --seconds $(FUZZ_SECONDS)

golden: .venv/ready
	.venv/bin/pytest tests/report/test_report.py tests/report/test_page_in_browser.py --update-golden

# Bytecode is left to the first import: half of the installation's time went into modules that nobody imports.
.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(PIP) install --upgrade "pip>=25.1"
	$(PIP) install --no-compile --editable . --group dev
	touch $@

# What is written from code and plants: schemas, the pages of the reason codes, of scenarios and of drills.
docs: .venv/ready
	.venv/bin/perfgate schema scenario > docs/schema/scenario.schema.json
	.venv/bin/perfgate schema config > docs/schema/config.schema.json
	.venv/bin/perfgate schema verdict > docs/schema/verdict.schema.json
	.venv/bin/python docs/codes_page.py > docs/reasons.md
	.venv/bin/python docs/scenario_page.py > docs/scenario.md
	.venv/bin/python docs/drills_page.py > docs/drills.md

# The pictures in docs/images, from recorded runs; needs a Chromium.
screenshots: .venv/ready
	.venv/bin/python research/screenshots.py

# What the actions install beside tokens that may write: every file by its hash. Read the difference before committing it.
lock: .venv/ready
	$(PIP) install "uv>=0.9"
	.venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-emit-index-url --custom-compile-command "make lock" --group build pyproject.toml \
	  --output-file .github/actions/requirements.txt
	.venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes --no-annotate \
	  --no-emit-index-url --custom-compile-command "make lock" --constraint .github/actions/requirements.txt \
	  --group build --extra history pyproject.toml --output-file .github/actions/requirements-history.txt

clean:
	rm -rf .venv .engine
