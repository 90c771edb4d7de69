#!/usr/bin/env bash
# The conformance agent; see clientlib/conformance.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
./setup.sh
exec node build/js/agent/agent.js
