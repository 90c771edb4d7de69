#!/usr/bin/env bash
# Unpacks Debian or Ubuntu packages into a directory, without root and without
# installing anything: what generates and tries the stubs of other languages.
#
#   deploy/debian.sh DIRECTORY PACKAGE[=VERSION]…
#
# makes DIRECTORY with the packages and what they depend on, as far as this machine
# has not installed it, and DIRECTORY/run: "DIRECTORY/run COMMAND…" runs a command
# that finds their programs, libraries, headers, Java classes and Python modules.
# VERSION is what a package's version must begin with.
set -euo pipefail

fail() {
	printf 'debian.sh: %s\n' "$*" >&2
	exit 1
}

[ $# -ge 2 ] || fail "usage: debian.sh DIRECTORY PACKAGE[=VERSION]…"
if ! command -v apt-get >/dev/null || ! command -v dpkg >/dev/null; then
	fail "this takes packages of Debian (12, 13) or Ubuntu (24.04), and there is no apt-get here: ${*:2}"
fi

target=$1
shift
mkdir -p "$(dirname "$target")"
# Of several at once, one does it.
if command -v flock >/dev/null; then
	exec 9>"$target.lock"
	flock 9
	[ ! -x "$target/run" ] || exit 0
fi

place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir -p "$place/lists/partial" "$place/cache/archives/partial" "$place/debs" "$place/root"

# Lists and a cache of its own: no lock to wait for, no root needed, and no
# dependence on how old the machine's lists are.
export LC_ALL=C
apt=(apt-get -q -o "Dir::State::Lists=$place/lists" -o "Dir::Cache=$place/cache"
	-o "APT::Sandbox::User=$(id -un)" -o Debug::NoLocking=1 -o Acquire::Retries=3)

"${apt[@]}" update >"$place/log" 2>&1 || fail "apt-get update failed: $(tail -n 3 "$place/log")"
"${apt[@]}" install --simulate --no-install-recommends "${@%%=*}" >"$place/plan" 2>"$place/log" ||
	fail "apt-get cannot resolve $*: $(tail -n 3 "$place/log")"

# Inst NAME (VERSION …) or, of an older one that is installed, Inst NAME [OLD] (…).
sed -nE 's/^Inst ([^ ]+) (\[[^]]*\] )?\(([^ ]+) .*/\1=\3/p' "$place/plan" >"$place/missing"
for package; do
	name=${package%%=*}
	wanted=${package#"$name"}
	wanted=${wanted#=}
	version=$(sed -n "s/^$name=//p" "$place/missing")
	[ -n "$version" ] || version=$(dpkg-query -W -f '${Version}' "$name")
	[[ $version == "$wanted"* ]] ||
		fail "$name $wanted is wanted, and here it is $version; Debian 12 and 13 and Ubuntu 24.04 have what is wanted"
done

if [ -s "$place/missing" ]; then
	(cd "$place/debs" && xargs -a "$place/missing" "${apt[@]}" download) >"$place/log" 2>&1 ||
		fail "apt-get download failed: $(tail -n 3 "$place/log")"
	for file in "$place"/debs/*.deb; do
		dpkg -x "$file" "$place/root"
	done
fi

cat >"$place/root/run" <<'RUN'
#!/usr/bin/env bash
# Runs a command that finds what is unpacked beside this file.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
join() {
	local IFS=:
	echo "$*"
}
shopt -s nullglob
libraries=("$here"/usr/lib/*-linux-gnu* "$here"/lib/*-linux-gnu* "$here"/usr/lib/*-linux-gnu*/pulseaudio)
export PATH="$here/usr/bin:$PATH"
export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$here/usr/lib/python3/dist-packages"
if [ ${#libraries[@]} -gt 0 ]; then
	export LD_LIBRARY_PATH="$(join "${libraries[@]}")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
	export LIBRARY_PATH="$(join "${libraries[@]}")${LIBRARY_PATH:+:$LIBRARY_PATH}"
fi
# Java looks for what is unpacked and for what is installed.
export CLASSPATH="$here/usr/share/java/*:/usr/share/java/*${CLASSPATH:+:$CLASSPATH}"
export CPATH="$here/usr/include${CPATH:+:$CPATH}"
exec "$@"
RUN
chmod 755 "$place/root" "$place/root/run"
rm -rf "$target"
mv "$place/root" "$target"
