#!/usr/bin/env bash
# Make a virtual environment for a GPU machine that has torch but no network, from wheels that were brought along.
#
#   scripts/gpu/setup.sh [VENV]            (default: .venv-gpu); then: VENV/bin/python scripts/gpu/judge_suite.py --help
#
# PYTHON   the interpreter that has torch (default: python3)
# WHEELS   folder of wheels (default: .carry/wheels)
#
# Fill the folder on a machine with a network, for the GPU machine's Python:
#   pip download --only-binary=:all: --python-version 3.12 --implementation cp --platform manylinux2014_x86_64 \
#       -d .carry/wheels msgspec 'typer>=0.16' 'rich>=13.9' tree-sitter tree-sitter-cuda nvidia-ml-py
# (and pytest, pytest-timeout, for the tests that need a GPU: VENV/bin/python -m pytest -m gpu)
# With a network on the GPU machine itself, scripts/setup.sh does all of this.
set -euo pipefail
cd "$(dirname "$0")/../.."

stop() { printf 'gpu/setup: %s\n' "$*" >&2; exit 1; }

venv=${1:-.venv-gpu}
python=${PYTHON:-python3}
wheels=${WHEELS:-.carry/wheels}
compgen -G "$wheels/*.whl" >/dev/null || stop "no wheels in $wheels; the head of this script says how to fetch them."

torch=$("$python" -c 'import importlib.util as u; s = u.find_spec("torch"); print(s.submodule_search_locations[0] if s else "")')
[ -n "$torch" ] || stop "$python has no torch; name an interpreter that has: PYTHON=/path/to/python3 $0"

"$python" -m venv --without-pip "$venv"
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
"$python" -m pip install --quiet --disable-pip-version-check --no-index --no-deps --no-compile --upgrade \
    --target "$site" "$wheels"/*.whl
# Search paths rather than --system-site-packages, which passes over packages of an interpreter that is itself in a
# virtual environment; the wheels come first.
printf '%s\n' "$PWD/src" "$(dirname "$torch")" > "$site/cuda_agent_gpu.pth"
"$venv/bin/python" -c 'import cuda_agent.assemble; from cuda_agent.gates.devices import cuda_devices; print(*cuda_devices(), sep="\n")'
