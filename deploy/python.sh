#!/usr/bin/env bash
# Runs Python with what the Python client needs, grpcio and protobuf.
#
#   deploy/python.sh ARGUMENT…      runs Python with the arguments
#
# It is the interpreter FANFARE_PYTHON names, or the first of python3 and
# /usr/bin/python3 that has both. If none has, they are unpacked from Debian packages
# into .tools, once, for /usr/bin/python3.
set -euo pipefail
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

# gen/ holds what was generated and nothing else.
export PYTHONDONTWRITEBYTECODE=1

has_both() { "$1" -c 'import grpc.aio, google.protobuf' 2>/dev/null; }

if [ -n "${FANFARE_PYTHON:-}" ]; then
	command -v "$FANFARE_PYTHON" >/dev/null || {
		echo "python.sh: FANFARE_PYTHON=$FANFARE_PYTHON is no program that can be run" >&2
		exit 1
	}
	has_both "$FANFARE_PYTHON" || {
		echo "python.sh: FANFARE_PYTHON=$FANFARE_PYTHON cannot import grpc and google.protobuf; run: $FANFARE_PYTHON -m pip install 'grpcio>=1.51' 'protobuf>=3.20.2,<6'" >&2
		exit 1
	}
	exec "$FANFARE_PYTHON" "$@"
fi
unpacked=$top/.tools/python3-grpcio
if ! [ -x "$unpacked/run" ]; then
	for python in python3 /usr/bin/python3; do
		if has_both "$python"; then
			exec "$python" "$@"
		fi
	done
	echo 'python.sh: unpacking python3-grpcio into .tools' >&2
	"$top/deploy/debian.sh" "$unpacked" python3-grpcio=1.51 python3-protobuf >&2 || {
		echo "python.sh: no Python here has grpcio; run: python3 -m pip install 'grpcio>=1.51' 'protobuf>=3.20.2,<6'" >&2
		exit 1
	}
fi
python=/usr/bin/python3
[ -x "$python" ] || python=$unpacked/usr/bin/python3
exec "$unpacked/run" "$python" "$@"
