# make repro   the pipeline, from nothing: environment, data, models, evidence, table
# make test    the tests, without those marked slow; make test ALL=1 (and CI=true) with them
# make lint    style and import contract
# make release MODEL=road VERSION=v1.0.0    git tags for a model that may be released (docs/registry.md)
# make push    outputs and the run-cache to the DVC remote; make pull [MODEL=road] brings them (docs/remotes.md)
# make audit   known vulnerabilities of what the locks pin
# make lock    pin the dependencies again (after a change of pyproject.toml)
# make images  the pipeline's container images, image-cpu and image-gpu (docs/containers.md)
# EXTRA=gpu takes onnxruntime-gpu; RUN=cpu or RUN=gpu runs every stage in that image; any other RUN is put before every stage's command.
SHELL := /bin/bash
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
EXTRA ?= cpu
VENV ?= .venv
READY := $(VENV)/.ready-$(EXTRA)
IN_VENV := PATH="$(CURDIR)/$(VENV)/bin:$$PATH" VIRTUAL_ENV="$(CURDIR)/$(VENV)"

# Relative, because DVC's shell would split a path with spaces: stages run where dvc.yaml is.
STAGE_RUN = $(if $(filter cpu gpu,$(RUN)),./containers/run $(RUN),$(RUN))
ENGINE ?= $(shell for e in docker podman; do $$e info >/dev/null 2>&1 && echo $$e && break; done)

.PHONY: repro setup test lint format release push pull audit images image-cpu image-gpu lock clean

repro: $(READY)
	@$(IN_VENV) OCTAVO_RUN="$(STAGE_RUN)" dvc repro $(STAGES)
	@$(IN_VENV) python stages/report.py

setup: $(READY)

test: $(READY)
	@$(IN_VENV) pytest -n 2 --dist loadfile --no-loadscope-reorder $(if $(ALL)$(filter true,$(CI)),,-m "not slow") $(ARGS)

lint: $(READY)
	@$(IN_VENV) ruff check .
	@$(IN_VENV) ruff format --check .
	@$(IN_VENV) lint-imports

format: $(READY)
	@$(IN_VENV) ruff check --fix . ; $(IN_VENV) ruff format .

release: $(READY)
	@$(IN_VENV) python -m octavo release "$(MODEL)" "$(VERSION)" $(ARGS)

images: image-cpu image-gpu

image-cpu image-gpu: image-%:
	@test -n "$(ENGINE)" || { echo "error: no container engine answers; install podman or docker, or name one: make images ENGINE=podman"; exit 2; }
	$(ENGINE) build -f Dockerfile.$* --target pipeline -t octavo-$*:pipeline $(BUILD_ARGS) .

push: $(READY)
	@$(IN_VENV) python -m octavo push $(ARGS)

pull: $(READY)
	@$(IN_VENV) python -m octavo pull "$(MODEL)" $(ARGS)

# Strict: what the service does not know or cannot be asked about is a failure, not a pass. Nothing is installed or built.
audit: $(READY)
	@$(IN_VENV) bash -c 'code=0; for lock in requirements/*.txt; do echo "$$lock"; \
		pip-audit --strict --require-hashes --disable-pip -r "$$lock" $(ARGS) || code=1; done; exit $$code'

# uv installs about five times faster than pip; where it cannot (another index set up for pip alone), pip does the same from
# the same hashed lock.
$(READY): requirements/$(EXTRA).txt requirements/demo.txt requirements/bootstrap.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "error: Python 3.11 or newer is needed; install it, or name it: make PYTHON=/path/to/python3"; exit 2; }
	@echo "setting up $(VENV) ($(EXTRA)) ..."
	@test -x "$(VENV)/bin/python" || $(PYTHON) -m venv "$(VENV)"
	@"$(VENV)/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@"$(VENV)/bin/uv" pip install -q --native-tls --compile-bytecode --python "$(VENV)/bin/python" --require-hashes -r requirements/$(EXTRA).txt \
		|| "$(VENV)/bin/python" -m pip install -q --require-hashes -r requirements/$(EXTRA).txt
	@"$(VENV)/bin/uv" pip install -q --native-tls --compile-bytecode --python "$(VENV)/bin/python" --no-deps --require-hashes -r requirements/demo.txt \
		|| "$(VENV)/bin/python" -m pip install -q --no-deps --require-hashes -r requirements/demo.txt
	@"$(VENV)/bin/python" -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@rm -f "$(VENV)"/.ready-* && touch "$(READY)"

COMPILE = "$(VENV)/bin/uv" pip compile --native-tls --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--no-annotate --no-header -q
# Of the container images: parts of what cpu.txt has, at its versions.
IMAGE = $(COMPILE) -c requirements/cpu.txt
PIPELINE := --extra torch --extra transformers --extra pipeline --extra s3 --extra ssh --extra review
lock:
	$(COMPILE) --extra cpu --extra torch --extra pipeline --extra dev pyproject.toml -o requirements/cpu.txt
	$(COMPILE) --extra gpu --extra torch --extra pipeline --extra dev pyproject.toml -o requirements/gpu.txt
	$(COMPILE) --no-deps requirements/demo.in -o requirements/demo.txt
	$(COMPILE) requirements/bootstrap.in -o requirements/bootstrap.txt
	$(IMAGE) $(PIPELINE) --extra cpu pyproject.toml -o requirements/pipeline-cpu.txt
	$(IMAGE) $(PIPELINE) --extra gpu pyproject.toml -c requirements/gpu.txt -o requirements/pipeline-gpu.txt
	$(IMAGE) --extra cpu pyproject.toml -o requirements/runtime-cpu.txt
	$(IMAGE) --extra gpu pyproject.toml -c requirements/gpu.txt -o requirements/runtime-gpu.txt
	$(IMAGE) requirements/torch.in -o requirements/torch.txt
	$(IMAGE) requirements/build.in -o requirements/build.txt

clean:
	rm -rf "$(VENV)"
