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

# find_processes: "RANK PID" of every epa2a that lives and has TMPDIR=$work: of what was started in agents(), of
# its children in ranks(). By bash alone: a process that looks may wait for a core behind those that it looks for.
find_processes() {
    local stat pid name state parent word words rank ours
    agents=() ranks=()
    for stat in /proc/[0-9]*/stat; do
        { read -r pid name state parent _ <"$stat" && [ "$name" = "(epa2a)" ] && [ "$state" != Z ] &&
            mapfile -d '' -t words <"/proc/$pid/environ"; } 2>/dev/null || continue
        rank='' ours=''
        for word in "${words[@]}"; do
            case $word in
            TMPDIR="$work") ours=yes ;;
            OMPI_COMM_WORLD_RANK=* | RANK=*) rank=${word#*=} ;;
            esac
        done
        [ -n "$ours" ] || continue
        name=
        { read -r name <"/proc/$parent/comm"; } 2>/dev/null
        if [ "$name" = epa2a ]; then
            ranks+=("$rank $pid")
        else
            agents+=("$rank $pid")
        fi
    done
}

# none_left: all of these have ended
none_left() {
    find_processes
    [ $((${#agents[@]} + ${#ranks[@]})) = 0 ] || fail "left behind: ${agents[*]} ${ranks[*]}"
}

now_ms() { echo $((${EPOCHREALTIME/[.,]/} / 1000)); }

# late_by_itself FILE: who timed out there waited for nobody but had no core; then $limit_ms is longer.
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
