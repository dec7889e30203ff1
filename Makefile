# `make demo` and `make test` install everything they need in .venv; unchanged steps are not repeated.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
NATIVE = $(shell find csrc python_tests -name '*.cpp' -o -name '*.cu' -o -name '*.h' -o -name '*.cuh')

.PHONY: install demo test proof seeds wheel sanitize mutate lint format bench gpu gpu-pack docs clean

# $(call step,WHAT,COMMAND): runs the command and prints a line every five seconds, because pip prints nothing to a log.
define step
@echo "$(1)"; begun=$$(date +%s); \
	( while sleep 5; do echo "$(1): $$(($$(date +%s) - begun)) s"; done ) & ticker=$$!; \
	trap "kill $$ticker" EXIT; { $(2); }
endef

# $(call needs,TABLE): requirements of pyproject.toml, one per line.
needs = $(BIN)/python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))$(1), sep='\n')"

install: $(VENV)/.installed

# Build requirements, at the versions that pyproject.toml pins. They are installed in .venv because the package is built
# without isolation, which keeps object files.
$(VENV)/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	@$(call needs,['build-system']['requires']) > $(VENV)/build.txt
	$(call step,Installing PyTorch and what the build needs,$(BIN)/pip install --quiet -r $(VENV)/build.txt)
	@touch $@

# The package is first installed without the C++ part and then compiled with visible progress. Folders are prerequisites
# too, because their times change when a file is removed.
$(VENV)/.installed: $(VENV)/.ready setup.py $(shell find csrc)
	$(call step,Linking the package,RNNKERN_CPP=0 $(BIN)/pip install --quiet --no-build-isolation --editable .)
	$(call step,Compiling,$(BIN)/python setup.py -q build_ext --inplace)
	@touch $@

# Additional requirements of the demo, docs, lint, tests and wheel.
$(VENV)/.demo $(VENV)/.docs $(VENV)/.lint $(VENV)/.test $(VENV)/.wheel: $(VENV)/.%: $(VENV)/.ready
	@$(call needs,['project']['optional-dependencies']['$*']) > $(VENV)/$*.txt
	$(call step,Installing what $* needs,$(BIN)/pip install --quiet -r $(VENV)/$*.txt)
	@touch $@

# The packages of rnnkern.integrations, without their dependencies, so that pip leaves PyTorch as it is. Where they
# cannot be installed, their tests are skipped.
$(VENV)/.integrations: $(VENV)/.ready
	@$(call needs,['project']['optional-dependencies']['integrations']) > $(VENV)/integrations.txt
	$(call step,Installing what integrations need,$(BIN)/pip install --quiet --no-deps -r $(VENV)/integrations.txt \
	  && touch $@ || echo "Not installed; their tests will be skipped")

demo: install $(VENV)/.demo
	$(BIN)/python -m perf.demo

# One process per core, each with one thread. An idle process takes over tests of another.
PYTEST := OMP_NUM_THREADS=1 OMP_WAIT_POLICY=passive $(abspath $(BIN))/python -m pytest -q -rs -n auto --dist worksteal

# The fast tests: every operator family, module, error message and page.
test: install $(VENV)/.test
	$(PYTEST) -m "not proof" --durations=15

# A number that each commit changes.
SEED = $(shell printf %d 0x$$(git rev-parse --short=6 HEAD 2> /dev/null || echo 1))

# The numeric tests with the commit's random numbers; then the slow tests: every SIMD level that this processor supports,
# CUDA kernels in the interpreter, machine code, packaging, and the thread sanitizer at the highest level. Of long tables
# the commit draws a quarter; DRAW= runs all. PARTS=4 runs a quarter of all these tests, which the commit draws too.
PARTS = 1
DRAW = $(shell expr $(SEED) / 64)
proof: export RNNKERN_PROOF_DRAW = $(DRAW)
proof: export RNNKERN_PROOF_PART = $(shell expr $(SEED) % $(PARTS))/$(PARTS)
proof: seeds $(VENV)/.wheel $(VENV)/.integrations
	$(call step,Compiling SIMD levels,RNNKERN_SIMD_LEVELS=supported $(BIN)/python setup.py -q build_ext --inplace)
	RNNKERN_SIMD_LEVELS=supported $(PYTEST) -m proof --durations=15

# The fast tests that compare results by the closeness rule, with numbers drawn from another seed.
NUMERIC = $(shell grep -lrwE "agree|check_recurrence|assert_close_over_draws|operators import .*check.*" \
  python_tests/ops python_tests/nn python_tests/cells --include=test_*.py)
seeds: install $(VENV)/.test
	RNNKERN_TEST_SEED=$(SEED) $(PYTEST) -m "not proof" $(NUMERIC)

# A wheel for distribution, in dist: it has every SIMD level, libstdc++ is part of it, and auditwheel tags it with the
# oldest glibc that it supports. libgcc stays shared: exceptions pass through PyTorch, and a static one of GCC 12 needs
# glibc 2.35. PyTorch's libraries and its OpenMP are excluded: a second OpenMP would create a second thread pool.
wheel: export RNNKERN_SIMD_LEVELS ?= all
wheel: export RNNKERN_LDFLAGS ?= -static-libstdc++ -Wl,--exclude-libs,ALL
wheel: $(VENV)/.wheel
	rm -rf build/lib* build/wheel
	$(BIN)/python -m build --wheel --no-isolation --skip-dependency-check --outdir build/wheel
	PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python -m auditwheel repair --wheel-dir dist \
	  --exclude 'libtorch*.so' --exclude 'libc10*.so' --exclude libgomp.so.1 build/wheel/*.whl

# Runs tests of operators, thousands of random calls and interpreted kernels under the address and undefined-behavior
# sanitizers, in a copy with a separate build; python_tests/threads looks for races.
SANITIZED := build/sanitize
UNDER = PYTHONPATH=. ASAN_OPTIONS=detect_leaks=0 \
	  LD_PRELOAD="$$(for l in asan ubsan stdc++; do c++ -print-file-name=lib$$l.so; done | xargs)"
sanitize: install $(VENV)/.test
	mkdir -p $(SANITIZED)
	cp -au csrc rnnkern python_tests setup.py pyproject.toml README.md LICENSE $(SANITIZED)
	rm -f $(SANITIZED)/rnnkern/*.so
	cd $(SANITIZED) && RNNKERN_LDFLAGS=-fsanitize=address,undefined \
	  RNNKERN_CXXFLAGS="-O0 -g1 -fsanitize=address,undefined -fno-sanitize-recover=undefined" \
	  $(abspath $(BIN))/python setup.py -q build_ext --inplace
	cd $(SANITIZED) && $(UNDER) RNNKERN_EXAMPLES=3000 $(PYTEST) -p no:cacheprovider python_tests/ops/test_recurrence.py \
	  python_tests/ops/test_noise.py python_tests/ops/test_pair.py \
	  python_tests/ops/test_properties.py python_tests/ops/test_values.py python_tests/ops/test_derivatives.py \
	  python_tests/ops/test_layouts.py python_tests/ops/test_sequences.py python_tests/ops/test_unsafe_arguments.py \
	  python_tests/ops/test_skew_exp.py python_tests/ops/test_skew_bound.py \
	  python_tests/ops/test_gather_attention.py python_tests/ops/test_relevancy.py \
	  python_tests/ops/test_relevancy_adversarial.py python_tests/ops/test_sab.py \
	  python_tests/ops/test_linear_scan.py python_tests/ops/test_givens.py \
	  -k "not 1000 and not compile"
	cd $(SANITIZED) && $(UNDER) RNNKERN_CXXFLAGS="-O0 -g0 -fsanitize=address,alignment" \
	  $(PYTEST) -p no:cacheprovider python_tests/gpu/test_relevancy.py python_tests/gpu/test_givens_recurrence.py \
	  -k "not shipped and not every_tile"
	RNNKERN_SANITIZE=1 $(PYTEST) python_tests/threads \
	  python_tests/gpu/test_recurrence_calls.py::test_interpret_under_the_address_sanitizer

# Mutation tests: applies each listed change to a copy with a separate build, and prints changes that no test detects.
mutate: install $(VENV)/.test
	$(BIN)/python -m python_tests.mutation $(if $(ONLY),--only '$(ONLY)') $(if $(QUICK),--quick)

lint: $(VENV)/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	@$(BIN)/clang-format --dry-run -Werror $(NATIVE)

format: $(VENV)/.lint
	$(BIN)/ruff check --fix
	$(BIN)/ruff format
	$(BIN)/clang-format -i $(NATIVE)

bench: install $(VENV)/.demo
	$(BIN)/python -m perf.bench

# What `make gpu` needs on a machine with a GPU, in build/gpu_pack: the library at every SIMD level, and the kernels as
# NVRTC of CUDA 13.0 compiles them, which is the version there and that of the tests here.
gpu-pack: install $(VENV)/.test
	$(call step,Compiling every SIMD level,RNNKERN_SIMD_LEVELS=all $(BIN)/python setup.py -q build_ext --inplace)
	$(BIN)/python -m perf.gpu.pack

# For a machine with a GPU; uses the installed Python, without network and .venv. AGAIN=report.json makes the second
# call; OUT= is the folder of the report and the archive; DRY=1 starts the kernels on a stand-in for the driver.
gpu:
	$(PYTHON) -m perf.gpu $(if $(AGAIN),--again '$(AGAIN)') $(if $(OUT),--out '$(OUT)') $(if $(DRY),--rehearse)

docs: install $(VENV)/.docs
	$(BIN)/python -m mkdocs build --strict --config-file .mkdocs.yml

clean:
	rm -rf $(VENV) build dist site *.egg-info rnnkern/*.so
