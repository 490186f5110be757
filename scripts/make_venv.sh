#!/usr/bin/env bash
# Makes .venv with Python 3.11 or later: scripts/make_venv.sh <python> <folder>
set -euo pipefail

python=$1
folder=$2

if ! command -v "$python" >/dev/null; then
  echo "$python is not on PATH. Install Python 3.11 or later, or run: make setup PYTHON=<path>" >&2
  exit 1
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "$python is $("$python" -V), but 3.11 or later is needed. Run: make setup PYTHON=<path>" >&2
  exit 1
fi
if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then
  # Debian and Ubuntu keep these modules in a package of their own.
  if [ -e /etc/debian_version ] && [ "$(id -u)" = 0 ]; then
    apt-get update -q && apt-get install -q -y --no-install-recommends python3-venv
  else
    echo "$python cannot make a venv. Install it (Debian, Ubuntu: apt-get install python3-venv)." >&2
    exit 1
  fi
fi
# A folder whose Python is gone or too old is made anew.
if ! "$folder/bin/python" -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  "$python" -m venv --clear "$folder"
fi
