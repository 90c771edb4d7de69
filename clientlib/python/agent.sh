#!/usr/bin/env bash
# Runs the conformance agent.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHONPATH=$here exec "$here/../../deploy/python.sh" "$here/conformance_agent.py"
