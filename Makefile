# make serve | make test | make check. Everything lands in .venv/ and artifacts/; delete them to start over.
PYTHON  ?= python3
ifneq ($(filter gpu-check,$(MAKECMDGOALS)),)
DEVICE  ?= cuda
endif
DEVICE  ?= cpu
# Trained on MovieLens by the first make serve; the seeded one takes its place where there are no data.
DEMO      := artifacts/movielens$(if $(filter cuda%,$(DEVICE)),-cuda)
REFERENCE := artifacts/reference$(if $(filter cuda%,$(DEVICE)),-cuda)
MODEL   ?= $(DEMO)
VENV    ?= .venv
BIN     := $(VENV)/bin
# DEVICE=cuda takes the CUDA build of FBGEMM; anything else the CPU build.
EXTRA   := $(if $(filter cuda%,$(DEVICE)),cuda,cpu)
OTHER   := $(if $(filter cuda,$(EXTRA)),fbgemm-gpu-cpu,fbgemm-gpu)
PIP     := $(BIN)/python -m pip -qq --disable-pip-version-check
SERVE   := $(VENV)/.installed-$(EXTRA)
DEV     := $(VENV)/.installed-$(EXTRA)-dev
DOCS    := $(VENV)/.installed-docs
TORCHREC := torchrec==1.8.0
# Apart: it needs urllib3, which niquests replaces.
SCHEMATHESIS := $(VENV)/schemathesis/bin/schemathesis
# Apart, as it is no part of what is audited.
AUDIT := $(VENV)/audit/bin/pip-audit
# One process a CPU, at most four; make test PARALLEL= runs them one after another.
PARALLEL ?= -n auto --maxprocesses 4 --dist worksteal

CLIENTS := .clients/.installed

# Seconds that make fuzz spends on each of FUZZ, which are targets of tests/fuzz/targets.py.
SECONDS ?= 60
FUZZ    ?= predictor oip-grpc oip-json oip-binary predict-json http-head coding http1 http3

# pip says nothing while it downloads and unpacks: every 20 s a line shows that it is at work.
INSTALL = ( s=0; while sleep 20 > /dev/null 2>&1; do s=$$((s + 20)); \
  echo "     ... at work for $$s s, $$(du -sm $(VENV) | cut -f1) MB in $(VENV)"; done ) & \
  ticks=$$!; trap "kill $$ticks" EXIT; $(PIP) install

.PHONY: serve compile test test-failed test-slow docs clients check lint audit format proto cpp-reference bars peer peers gpu-check fuzz clean

# 3 is what narsil train exits with if the data cannot be had.
serve: $(SERVE)
	@model=$(MODEL); \
	if [ $$model = $(DEMO) ] && [ ! -e $$model/manifest.json ]; then \
	  echo "no $$model yet: training it on MovieLens-100K, about a minute, once ..."; \
	  $(BIN)/narsil train movielens $$model --device $(DEVICE) || \
	    { [ $$? = 3 ] && model=$(REFERENCE) || exit 1; \
	      echo "NO MOVIELENS DATA: serving $$model instead, whose weights are random; make serve tries again"; }; \
	fi; \
	[ $$model != $(REFERENCE) ] || [ -e $$model/manifest.json ] || \
	  $(BIN)/narsil export $$model --preset reference --device $(DEVICE) || exit 1; \
	exec $(BIN)/narsil serve $$model --device $(DEVICE) $(ARGS)

# The path of a request as machine code, for every later start (docs/compiled.md): a few minutes, once.
compile: $(SERVE)
	@$(PIP) install -e ".[compile]"
	$(BIN)/narsil compile

test: $(DEV)
	$(BIN)/pytest -m "not slow and not clients" $(PARALLEL) $(ARGS)

test-slow: $(DEV) $(SCHEMATHESIS) $(AUDIT)
	$(BIN)/pytest -m slow $(ARGS)

# A broken link, a heading that is not there and a page that no other leads to are errors.
docs: $(DOCS)
	$(BIN)/python -m sphinx -q --fail-on-warning --keep-going --nitpicky -d build/doctrees docs build/docs
	@echo "built: build/docs/index.html"

clients: $(DEV) $(CLIENTS)
	$(BIN)/pytest tests/clients $(ARGS)

check: lint
	$(MAKE) test ARGS="--cov --cov-fail-under=98 $(ARGS)"

lint: $(DEV)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# The tests that failed last, one after another, with nothing beside them.
test-failed: $(DEV)
	$(BIN)/pytest --last-failed --last-failed-no-failures none $(ARGS)

fuzz: $(DEV)
	for target in $(FUZZ); do \
	  $(BIN)/python -m tests.fuzz $$target -max_total_time=$(SECONDS) || exit 1; done

# Asks PyPI's JSON API, then api.osv.dev, about each package of $(VENV); where only the index of
# packages can be reached neither answers. Fails for known weaknesses; where nobody answers it says
# NOT AUDITED and passes (STRICT=1: fails too).
audit: $(SERVE)
	@$(MAKE) -s $(AUDIT) || true
	@$(PYTHON) .ci/audit.py $(AUDIT) $(BIN)/python $(if $(STRICT),--strict)

format: $(DEV)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

proto: $(DEV)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. transports/proto/*.proto

# The C++ server that figures are compared with. It is built against the installed PyTorch.
cpp-reference: $(SERVE)
	@command -v cmake grpc_cpp_plugin protoc > /dev/null || { echo "needs Debian's cmake g++ pkg-config libgrpc++-dev protobuf-compiler-grpc" >&2; exit 1; }
	cmake -S loadtest/cpp_reference -B build/cpp_reference -DTORCH=$$($(BIN)/python -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0])")
	cmake --build build/cpp_reference

# Narsil beside that server: docs/benchmarking.md. ARGS="--backend torch_dlrm" for the default backend.
bars: $(SERVE) $(REFERENCE)/manifest.json
	$(BIN)/python -m loadtest.bars $(REFERENCE) --backend native_dlrm $(ARGS)

# Servers from PyPI with the same artifact: make peer PEER=mosec installs one, each in a virtualenv of
# its own; make peers installs all and prints the table (docs/benchmarks.md).
PEERS   := bentoml litserve mlserver mosec ray
peer: .peers/$(PEER)/.installed

peers: $(PEERS:%=.peers/%/.installed) $(SERVE) $(REFERENCE)/manifest.json
	$(BIN)/python -m loadtest.peers $(REFERENCE) $(ARGS)

.peers/%/.installed: loadtest/peers/%/requirements.txt loadtest/peers/requirements.txt
	@echo "installing $* into .peers/$* ..."
	@$(PYTHON) -m venv .peers/$*
	@.peers/$*/bin/python -m pip -qq --disable-pip-version-check install -r loadtest/peers/requirements.txt -r $<
	@touch $@

# On a machine with a CUDA device: every path, graph and kernel, in one table (docs/cuda.md).
# GPU_PYTHON=python3 takes an interpreter that has PyTorch and FBGEMM for CUDA already.
GPU_PYTHON ?= $(BIN)/python
gpu-check: $(if $(filter $(BIN)/python,$(GPU_PYTHON)),$(DEV))
	$(GPU_PYTHON) -m loadtest.gpu_check $(if $(OUT),--out $(OUT)) $(ARGS)

$(REFERENCE)/manifest.json: | $(SERVE)
	$(BIN)/narsil export $(REFERENCE) --preset reference --device $(DEVICE)

$(BIN)/python:
	@echo "making the virtualenv $(VENV) ..."
	@$(PYTHON) -m venv $(VENV)

# The two FBGEMM builds overwrite each other's files: drop the other one before installing.
$(SERVE): pyproject.toml | $(BIN)/python
	@echo "installing into $(VENV), once: pip downloads and unpacks three sets of packages; a minute or two" \
	  "on an idle machine, several on a busy one or a slow line"
	@rm -f $(VENV)/.installed-*
	@$(PIP) uninstall --yes $(OTHER)
	@echo "  1 of 3: the server, PyTorch and FBGEMM ($(EXTRA)), the largest part ..."
	@$(INSTALL) -e ".[$(EXTRA)]"
	@echo "  2 of 3: what exports, trains and measures models ..."
	@$(INSTALL) -e ".[$(EXTRA),export,bench]"
	@echo "  3 of 3: TorchRec ..."
	@$(INSTALL) --no-deps $(TORCHREC)
	@touch $@

$(DEV): pyproject.toml $(SERVE)
	@echo "installing the development tools ..."
	@$(INSTALL) -e ".[$(EXTRA),export,dev,docs]"
	@touch $@

$(DOCS): pyproject.toml | $(BIN)/python
	@echo "installing the documentation tools ..."
	@$(PIP) install -e ".[docs]"
	@touch $@

$(CLIENTS): tests/clients/install.sh
	@echo "installing the clients (some 250 MB to download, a minute or two) ..."
	@PYTHON=$(PYTHON) tests/clients/install.sh $(@D)
	@touch $@

$(SCHEMATHESIS): | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/schemathesis
	$(VENV)/schemathesis/bin/python -m pip -qq --disable-pip-version-check install schemathesis==4.32.5

$(AUDIT): | $(BIN)/python
	$(PYTHON) -m venv $(VENV)/audit
	$(VENV)/audit/bin/python -m pip -qq --disable-pip-version-check install pip-audit==2.10.1

clean:
	rm -rf $(VENV) .clients .peers artifacts .narsil build *.egg-info
