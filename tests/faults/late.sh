# shellcheck shell=bash
# How soon something ends, for scripts that have fail() and $failed. A machine on which no core is free may be
# late: then all is done again, five times at most, and none may take as long as a wait for a rank that nobody
# says is lost: set a longer timeout than late_ms.
late_ms=60000 late='' failed=0

now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

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
