#!/usr/bin/env bash
# Makes sure that a Chromium is found through CHROMIUM or PATH: scripts/ensure_chromium.sh <python>
# Installs it on Debian and Ubuntu as root; elsewhere one line says what to install.
set -euo pipefail

python=${1:-python3}
cd "$(dirname "$0")/.."

if "$python" -m scripts.chromium 2>/dev/null; then
  exit 0
fi
if [ -z "${CHROMIUM:-}" ] && [ -e /etc/debian_version ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -q
  apt-get install -q -y --no-install-recommends chromium
fi
"$python" -m scripts.chromium
