#!/bin/bash
# readme.sh README [EPA2A BUILD]: runs the commands of README.md from the first to the last as one shell script. The
# commands are the lines of its blocks marked sh, and the lines after "$ " of its blocks marked console. Each runs as
# written; a command that fails is named by its line.
#
# Without EPA2A the script runs in the folder of README.md and installs packages: for a bare root file system. With EPA2A
# it runs in an empty folder that has configs/, examples/ and build/, prints commands that install or build instead of
# running them, and pkg-config names the library in the build tree.
set -u
readme=$(realpath "$1") epa2a=${2:-} build=${3:-}
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT

# Each command, and a heredoc with it, is followed by a call of result(): in `a && b`, set -e would ignore that a fails.
awk '/^```/ { inside = ($0 == "```sh") + 2 * ($0 == "```console"); next }
    !inside || !NF || inside == 2 && !sub(/^\$ /, "") { next }
    end == "" { print "begin " NR }
    { print }
    end == "" && match($0, /<<.[A-Z]+./) { end = substr($0, RSTART + 3, RLENGTH - 4); next }
    end != "" && $0 != end { next }
    { end = ""; print "result $?" }' "$readme" >"$work/script"

if [ -n "$epa2a" ]; then
    lacks=$("$epa2a" bench small --dry-run --html "$work/page.html" 2>&1 >/dev/null) || { echo "SKIP: $lacks"; exit 77; }
    mkdir "$work/folder" "$work/bin"
    ln -s "$(dirname "$readme")/configs" "$work/folder/configs"
    ln -s "$(dirname "$readme")/examples" "$work/folder/examples"
    ln -s "$(realpath "$build")" "$work/folder/build"
    printf '%s\n' 'Name: epa2a' 'Description: not installed' 'Version: 0' "Cflags: -I$(dirname "$readme")/include" \
        "Libs: -L$(realpath "$build")/src/lib -lepa2a" >"$work/epa2a.pc"
    export PKG_CONFIG_PATH=$work LD_LIBRARY_PATH=$(realpath "$build")/src/lib
    ln -s "$(realpath "$epa2a")" "$work/bin/epa2a"
    PATH=$work/bin:$PATH
    for name in apt-get meson ninja; do
        printf '#!/bin/sh\necho "not run: %s $*"\n' "$name" >"$work/bin/$name"
        chmod +x "$work/bin/$name"
    done
    cd "$work/folder" || exit 99
else
    cd "$(dirname "$readme")" || exit 99
fi

export readme
cat - "$work/script" >"$work/whole" <<'END'
commands=0 failed=0
begin() {
    line=$1 from=$SECONDS commands=$((commands + 1))
    echo "README.md:$line: $(sed -n "${line}p" "$readme")"
}
result() {
    echo "README.md:$line: exit code $1, $((SECONDS - from)) s"
    [ "$1" = 0 ] || failed=$((failed + 1))
}
END
echo 'echo "$commands commands, $failed failed"; [ $commands -ge 15 ] && [ $failed = 0 ]' >>"$work/whole"
bash "$work/whole" </dev/null 2>&1
