#!/usr/bin/env bash
# Runs the tests of the Python client, at FANFARE_BIN or a fanfare built for them.
# Arguments are those of unittest.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
cd "$here"

if [ -z "${FANFARE_BIN:-}" ]; then
	built=$(mktemp -d)
	trap 'rm -rf "$built"' EXIT
	CGO_ENABLED=0 go build -C ../.. -o "$built/fanfare" ./cmd/fanfare
	export FANFARE_BIN=$built/fanfare
fi
[ $# -gt 0 ] || set -- discover -t . -s tests
PYTHONPATH=$here ../../deploy/python.sh -W error -m unittest "$@"
