#!/usr/bin/env bash
# Measures everything that docs/performance.md tells. make bench builds what it
# needs in bin and calls it; it takes 15 minutes with BENCH_TIME=1s.
#
#   bench/run.sh            all of it
#   bench/run.sh PLACE…     sqlite, postgresql or postgresql-slow-disk
#
# Results are in bench/results: a file for each place with a line of JSON for each
# figure, another one with how long a commit takes there, and machine.txt with what
# they were measured on. BENCH_ROUNDS (7) and BENCH_TIME (2s, of each side in a
# round) may be set. PostgreSQL's files are in TMPDIR, which should be on a disk: in
# memory a flush costs nothing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
self=$PWD/bench/run.sh
# Apart from export, which would hide that there is none.
FANFARE_TEST_POSTGRES_BIN=$(deploy/postgres.sh bin)
export FANFARE_TEST_POSTGRES_BIN

results=bench/results
rounds=${BENCH_ROUNDS:-7}
length=${BENCH_TIME:-2s}
# Common cloud disks take 1 to 3 ms for a flush, local ones a tenth of that.
slow_flush=2ms
failed=0

# measure SCENARIO CASE… FLAG… adds to the results of $place, which are only moved
# to where they are kept when they are complete.
measure() {
	bin/fanfare bench "$@" --reference bin/limits --rounds "$rounds" --time "$length" --json >>"bin/$place.json" || failed=1
}

on_sqlite() {
	measure fanout 1000-subscribers 10000-subscribers 1000-paced 10000-paced behind --self
	measure slow --self
	measure idle --self
	measure storm --self
	measure replay --self
	measure latency --self
	measure publish --self
}

on_postgresql() {
	measure publish --database "$FANFARE_STORE"
	measure latency --database "$FANFARE_STORE"
	measure fanout growth resident-streams unheard --database "$FANFARE_STORE"
	measure replay --database "$FANFARE_STORE"
	measure storm --database "$FANFARE_STORE"
}

# A slower disk changes what waits for it.
on_postgresql_slow_disk() {
	measure publish --database "$FANFARE_STORE"
	measure latency --database "$FANFARE_STORE"
}

# note_commit tells how long a commit takes that nothing else waits for.
note_commit() {
	bin/limits publish --mode rows --callers 1 --time 2s --database "$FANFARE_STORE" >"$results/$place.commit"
}

note_machine() {
	{
		sed -n 's/^model name[^:]*: /processor: /p' /proc/cpuinfo | head -n 1
		echo "cores: $(nproc)"
		echo "kernel: $(uname -sr)"
		go version
		"$FANFARE_TEST_POSTGRES_BIN/postgres" --version
		bin/fanfare --version
		echo "rounds: $rounds, time of each side in a round: $length"
	} >bin/machine.txt
	mv bin/machine.txt "$results/"
}

# With a PostgreSQL server the script calls itself, and this is the call within.
if [ "${1:-}" = --within ]; then
	place=$2
	note_commit
	case $place in
	postgresql) on_postgresql ;;
	postgresql-slow-disk) on_postgresql_slow_disk ;;
	esac
	exit "$failed"
fi

[ $# -gt 0 ] || set -- sqlite postgresql postgresql-slow-disk
for place in "$@"; do
	case $place in
	sqlite | postgresql | postgresql-slow-disk) ;;
	*)
		echo "$place is none of sqlite, postgresql, postgresql-slow-disk" >&2
		exit 2
		;;
	esac
done
mkdir -p "$results"
note_machine
incomplete=0
for place in "$@"; do
	echo "== $place" >&2
	rm -f "bin/$place.json"
	failed=0
	case $place in
	sqlite) on_sqlite ;;
	postgresql) bin/limits postgres -- "$self" --within "$place" || failed=1 ;;
	postgresql-slow-disk) bin/limits postgres --flush "$slow_flush" -- "$self" --within "$place" || failed=1 ;;
	esac
	if [ "$failed" = 0 ]; then
		mv "bin/$place.json" "$results/"
	else
		echo "$place: not everything could be measured; what was is in bin/$place.json" >&2
		incomplete=1
	fi
done
exit "$incomplete"
