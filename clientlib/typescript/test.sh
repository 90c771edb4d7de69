#!/usr/bin/env bash
# Builds the TypeScript client and tests it against the server. FANFARE_BIN names
# the program fanfare; without it, it is built. FANFARE_TEST_REPORTER is what node
# calls --test-reporter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
./setup.sh

if [ -z "${FANFARE_BIN:-}" ]; then
  FANFARE_BIN=$PWD/build/fanfare
  (cd ../.. && go build -o "$FANFARE_BIN" ./cmd/fanfare)
fi
export FANFARE_BIN

exec node --test --test-reporter="${FANFARE_TEST_REPORTER:-dot}" build/js/test/*.test.js
