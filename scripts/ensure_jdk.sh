#!/usr/bin/env bash
# Makes sure that JDK 17 or 21 is found through JAVA_HOME or PATH: scripts/ensure_jdk.sh <python>
# Installs it on Debian and Ubuntu as root; elsewhere one line says what to install.
set -euo pipefail

python=${1:-python3}
cd "$(dirname "$0")/.."

find_jdk() {
  "$python" - <<'END'
import sys

from kstreams_assets.errors import JavaNotFoundError
from spark_resources.java import find_java

try:
    java = find_java(compiler=True)
except JavaNotFoundError as error:
    sys.exit(str(error))
print(f"JDK {java.version}: {java.home}")
END
}

if find_jdk 2>/dev/null; then
  exit 0
fi
if [ -e /etc/debian_version ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  apt-get update -q
  for version in 17 21; do # newer releases have no 17
    if apt-cache show "openjdk-$version-jdk-headless" >/dev/null 2>&1; then
      apt-get install -q -y --no-install-recommends "openjdk-$version-jdk-headless"
      break
    fi
  done
fi
find_jdk
