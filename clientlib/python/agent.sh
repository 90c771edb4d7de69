#!/usr/bin/env bash
# Runs the conformance agent; with the argument asyncio, that of fanfare.aio.
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
PYTHONPATH=$here exec "$here/../../deploy/python.sh" "$here/conformance_agent.py" "$@"
