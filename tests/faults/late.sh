# shellcheck shell=bash
# How soon something ends, for scripts that have fail() and $failed. A machine on which no core is free may be
# late: then all is done again, five times at most, and none may take as long as a wait for a rank that nobody
# says is lost: set a longer timeout than late_ms.
late_ms=60000 late='' failed=0

# Without a process, unlike sleep: what is waited for needs the cores.
exec {never}<> <(:)
rest() { read -rt "$1" -u "$never"; }

# The processes that PID has started, in $children_of.
find_children() { children_of='' && read -r children_of 2>/dev/null <"/proc/$1/task/$1/children"; }

now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# late_by_itself FILE: who timed out there waited for nobody but had no core; then $limit_ms is longer.
late_by_itself() {
    grep -q 'which all had reached by then' "$1" || return
    late="a rank had no core for $limit_ms ms"
    limit_ms=$((4 * limit_ms))
}

# in_time MS LIMIT_MS
in_time() {
    [ "$1" -le "$late_ms" ] || fail "took $1 ms"
    [ "$1" -le "$2" ] || late="took $1 ms, not $2 at most"
}

# until_in_time COMMAND...
until_in_time() {
    for _ in 1 2 3 4 5; do
        late=
        "$@"
        [ -n "$late" ] && [ "$failed" = 0 ] || break
    done
    [ -z "$late" ] || fail "$late"
}
