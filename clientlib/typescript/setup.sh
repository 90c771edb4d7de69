#!/usr/bin/env bash
# Installs what the package stands on and builds it, if either is out of date.
# Everything it prints goes to standard error.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
exec >&2

for tool in node npm; do
  if ! command -v "$tool" >/dev/null; then
    echo "$tool is not installed; the TypeScript client needs Node.js 18.17 or newer: apt-get install nodejs npm, or https://nodejs.org/"
    exit 1
  fi
done

# Agents and tests may be started at the same time.
mkdir -p build
if command -v flock >/dev/null; then
  exec 9>build/lock
  flock 9
fi

if ! [ node_modules/.package-lock.json -nt package-lock.json ]; then
  npm ci --no-audit --no-fund --ignore-scripts --loglevel=error
  touch node_modules/.package-lock.json
fi
if ! [ -e build/built ] || [ -n "$(find src test agent example ../../gen/ts ./*.json build.mjs -path src/gen -prune -o -type f -newer build/built -print -quit)" ]; then
  touch build/building
  node build.mjs
  mv build/building build/built
fi
