# make demo      watch the default model answer            make test      the test suite
# make lint      ruff, mypy, import-linter                 make test-all  and what needs torch, and the wheel
# make test-page the chat page in Chromium                 make test-ray  replicas and batches on Ray, in .venv-ray
# make soak      the long measurements; commit benchmarks/results afterwards
# make test-ends what meets transformers, on the oldest and on the newest version that is supported
# make test-quantised adapters and quantised models, with peft, torchao and bitsandbytes
#
# Everything lives in .venv; only what needs torch lives in .venv-all. A stamp file per set of extras makes a second
# run do no pip work at all; a changed pyproject.toml installs again.

PYTHON ?= python3
VENV := .venv
VENV_ALL := .venv-all
VENV_RAY := .venv-ray
VENV_END := .venv-transformers
VENV_QUANTISED := .venv-quantised
ENDS := 4.57.6 5.24.0
TORCH := $(shell sed -n 's/.*"\(torch==[0-9.]*\)".*/\1/p' pyproject.toml | head -n 1)
PIP_INSTALL := -m pip install -qq --disable-pip-version-check

.PHONY: demo test lint test-page test-ray test-all test-ends test-quantised soak clean

demo: $(VENV)/.installed
	@$(VENV)/bin/sooner run "Why is the sky blue? Explain it to a child in three sentences." --max-tokens 128

test: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest --durations=10

lint: $(VENV)/.installed-test $(VENV)/.installed-lint # mypy reads the tests too
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

test-page: $(VENV)/.installed-test $(VENV)/.installed-page # and Chromium: apt-get install chromium
	$(VENV)/bin/python -m pytest --durations=10 -m page

test-ray: $(VENV_RAY)/.installed
	$(VENV_RAY)/bin/python -m pytest --durations=10 -m ray tests/integrations

test-all: test $(VENV_ALL)/.installed
	$(VENV_ALL)/bin/python -m pytest --durations=10 -m "convert or wheel"

test-ends: $(ENDS:%=$(VENV_END)-%/.installed)
	@for end in $(ENDS); do echo "transformers $$end"; $(VENV_END)-$$end/bin/python -m pytest --durations=10 -m convert \
		tests/targets/test_torch_*.py tests/integrations/test_transformers*.py || exit; done

test-quantised: $(VENV_QUANTISED)/.installed
	$(VENV_QUANTISED)/bin/python -m pytest -m convert tests/targets/test_torch_adapter.py tests/targets/test_torch_quantised.py

soak: $(VENV)/.installed-test
	@for script in $$(grep -l "^if __name__" benchmarks/*.py); do echo "$$script"; $(VENV)/bin/python "$$script" || exit; done

clean:
	rm -rf $(VENV) $(VENV_ALL) $(VENV_RAY) $(VENV_QUANTISED) $(ENDS:%=$(VENV_END)-%) dist

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "sooner needs Python 3.11 or newer: make PYTHON=python3.11 demo")'
	@echo "Installing sooner into $(VENV), once (about 500 MB) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python $(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.installed-%: $(VENV)/.installed
	@echo "Installing the extra $* into $(VENV) ..."
	@$(VENV)/bin/python $(PIP_INSTALL) --editable ".[$*]"
	@touch $@

# torch first and by itself: pip then takes the CPU build where its index or wheel folder offers one.
$(VENV_ALL)/.installed: pyproject.toml
	@echo "Installing sooner with torch into $(VENV_ALL), once ..."
	@$(PYTHON) -m venv $(VENV_ALL)
	@$(VENV_ALL)/bin/python $(PIP_INSTALL) "$(TORCH)"
	@$(VENV_ALL)/bin/python $(PIP_INSTALL) --editable ".[convert,test]"
	@touch $@

$(VENV_RAY)/.installed: pyproject.toml
	@echo "Installing sooner with Ray into $(VENV_RAY), once ..."
	@$(PYTHON) -m venv $(VENV_RAY)
	@$(VENV_RAY)/bin/python $(PIP_INSTALL) --editable ".[ray,test]"
	@touch $@

$(VENV_END)-%/.installed: pyproject.toml
	@echo "Installing sooner with transformers $* into $(VENV_END)-$*, once ..."
	@$(PYTHON) -m venv $(VENV_END)-$*
	@$(VENV_END)-$*/bin/python $(PIP_INSTALL) "$(TORCH)"
	@$(VENV_END)-$*/bin/python $(PIP_INSTALL) "transformers==$*" --editable ".[torch,test]"
	@touch $@

$(VENV_QUANTISED)/.installed: pyproject.toml
	@echo "Installing sooner with peft, torchao and bitsandbytes into $(VENV_QUANTISED), once ..."
	@$(PYTHON) -m venv $(VENV_QUANTISED)
	@$(VENV_QUANTISED)/bin/python $(PIP_INSTALL) "$(TORCH)"
	@$(VENV_QUANTISED)/bin/python $(PIP_INSTALL) "transformers>=5.5" peft torchao bitsandbytes accelerate --editable ".[torch,test]"
	@touch $@
