#!/usr/bin/env bash
# Installs what the page is built with, if it is not there yet.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
if ! [ node_modules/.package-lock.json -nt package-lock.json ]; then
  npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
  touch node_modules/.package-lock.json
fi
