#!/usr/bin/env bash
# Builds helm from its Go module into .helm/, for the tests of deploy/helm. Without Go, or where the build
# fails, it says so and those tests are skipped.
set -euo pipefail

version=v3.22.0
cd "$(dirname "$0")/.."
built=.helm/$version/helm
[ -x "$built" ] && exit 0
if ! command -v go >/dev/null; then
  echo "Go is not installed, so the tests of the Helm chart are skipped." >&2
  exit 0
fi
echo "Building helm $version, about two minutes ..."
# Without optimisation: it renders some small templates, and is built in less time.
if ! CGO_ENABLED=0 GOBIN=$PWD/.helm/$version go install -gcflags="all=-N -l" -ldflags="-s -w" "helm.sh/helm/v3/cmd/helm@$version" >.helm.log 2>&1; then
  echo "helm $version could not be built (.helm.log), so the tests of the Helm chart are skipped." >&2
fi
