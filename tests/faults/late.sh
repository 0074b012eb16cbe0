# shellcheck shell=bash
# Time limits for scripts that have fail() and $failed. On a machine without a free core a run may
# be late: the script repeats it, at most five times. A run may not take as long as a wait for a
# rank whose loss is not reported: set a timeout longer than late_ms.
late_ms=60000 late='' failed=0

# Needs no process, unlike sleep: the awaited ranks need the cores.
exec {never}<> <(:)
rest() { read -rt "$1" -u "$never"; }

# Stores the child processes of PID in $children_of.
find_children() { children_of='' && read -r children_of 2>/dev/null <"/proc/$1/task/$1/children"; }

# find_processes: collects "RANK PID" of every live epa2a with TMPDIR=$work in ranks(). It uses bash
# only: another process could wait for a core behind the processes that it looks for.
find_processes() {
    local stat pid name state words word rank ours
    ranks=()
    for stat in /proc/[0-9]*/stat; do
        { read -r pid name state _ <"$stat" && [ "$name" = "(epa2a)" ] && [ "$state" != Z ] &&
            mapfile -d '' -t words <"/proc/$pid/environ"; } 2>/dev/null || continue
        rank='' ours=''
        for word in "${words[@]}"; do
            case $word in
            TMPDIR="$work") ours=yes ;;
            OMPI_COMM_WORLD_RANK=* | RANK=*) rank=${word#*=} ;;
            esac
        done
        [ -z "$ours" ] || ranks+=("$rank $pid")
    done
}

# runs PID: true until the process has ended
runs() { grep -qs '^State:[[:space:]]*[^Z[:space:]]' "/proc/$1/status"; }

# none_left: checks that all processes of find_processes end.
none_left() {
    local begun
    begun=$(now_ms)
    find_processes
    while [ ${#ranks[@]} != 0 ] && [ $(($(now_ms) - begun)) -le "$late_ms" ]; do
        rest 0.01
        find_processes
    done
    [ ${#ranks[@]} = 0 ] || fail "left behind: ${ranks[*]}"
}

now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# late_by_itself FILE: recognises a rank that timed out for want of a core, and extends $limit_ms.
late_by_itself() {
    grep -q 'which all ranks had reached by then' "$1" || return
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
