#!/usr/bin/env bash
# Create .venv in this checkout and install everything `make demo` and `make test` need.
#
# PYTHON   the interpreter to use (default: the first of python3.13 .. python3.11, python3 that is new enough)
# TORCH    the torch requirement (default: torch==2.13.0)
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '== %s\n' "$*" >&2; }
stop() { printf 'setup: %s\n' "$*" >&2; exit 1; }

command -v g++ >/dev/null || stop "no g++ on the PATH. nvcc needs a host C++ compiler: install one (Debian or Ubuntu: apt install g++) and run this again."

new_enough='import sys; sys.exit(sys.version_info < (3, 11))'
python=${PYTHON:-}
if [ -z "$python" ]; then
    for name in python3 python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null && "$name" -c "$new_enough" 2>/dev/null; then python=$name; break; fi
    done
fi
[ -n "$python" ] && "$python" -c "$new_enough" || stop "Python 3.11 or newer is needed; found ${python:-none}. Install one, or name it: PYTHON=/path/to/python3 make setup."
"$python" -c 'import sysconfig, os, sys; sys.exit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' \
    || stop "Python.h of $python is missing; candidates' bindings are compiled against it. Install the headers (Debian or Ubuntu: apt install python3-dev) and run this again."

say "virtual environment in .venv ($("$python" --version))"
"$python" -m venv .venv
pip() { .venv/bin/python -m pip --disable-pip-version-check --quiet "$@"; }

if ! .venv/bin/python -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("torch") is None)'; then
    torch=${TORCH:-torch==2.13.0}
    if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then
        say "installing $torch (CUDA build)"
        pip install "$torch"
    else
        # torch's own index has the CPU build, a tenth of the size; without it the default index decides.
        say "installing $torch (CPU build)"
        pip install --retries 0 --timeout 10 --index-url https://download.pytorch.org/whl/cpu "$torch" 2>/dev/null \
            || pip install "$torch"
    fi
fi

say "installing cuda-agent and its development tools"
pip install -e '.[dev]'

if ! .venv/bin/cuda-agent doctor --toolkit >/dev/null 2>&1; then
    say "no usable nvcc on this machine: installing the CUDA compiler as wheels"
    pip install -e '.[toolkit]'
fi

say "building the emulated device's core (once, about a minute)"
.venv/bin/python -c 'import cuda_agent.emulator as emulator; emulator.core_library()'

.venv/bin/cuda-agent doctor >&2
touch .venv/.ready
