#!/bin/bash
# mpirun on one host: what launcher mpi promises where no network is needed.
#   mpirun.sh EPA2A CONFIG KIND
#     KIND: verify    a report by rank 0 alone, that says who launched
#           again     several launches of one command, in the processes of the first
#           refused   outside of mpirun, with another size, with variables of another job
#           kill      a rank in mid-run, and what is left of the launches after it
#           setup     a rank while MPI starts
#           term      one of the processes is told to stop
set -u
epa2a=$1 config=$2 kind=$3
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work

skip() {
    echo "SKIP: $*"
    exit 77
}
"$epa2a" list launcher | grep -q '^  mpi ' || skip "built without launcher mpi"
command -v mpirun >/dev/null || skip "mpirun is missing (Debian: openmpi-bin)"
mpirun --version | grep -q 'Open MPI' || skip "this mpirun is not that of Open MPI"

failed=0
fail() {
    echo "FAIL: $*"
    sed 's/^/    /' "$work/err" "$work/out" | tail -n 40
    failed=1
}
says() { grep -Eq -- "$1" "$work/err" || fail "nobody says: $1"; }

# job SIZE ARGS: mpirun in the background; as root it wants to be asked twice
job() {
    local size=$1
    shift
    timeout -k 5 100 mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$size" "$epa2a" "$@" \
        >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
}

# alone VARIABLES: the program as if in a shell of a job, or in none
alone() {
    env "$@" timeout -k 5 100 "$epa2a" verify "$config" --set launcher=mpi \
        >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
}

ends() {
    local code
    wait "$pid"
    code=$?
    [ "$code" = "$1" ] || fail "exit code $code, not $1"
    [ -z "$(ours)" ] || fail "left behind: $(ours)"
}

# Processes of epa2a that this test has started, by its folder: pid and parent.
ours() {
    local p
    for p in /proc/[0-9]*; do
        tr '\0' '\n' 2>/dev/null <"$p/environ" | grep -qx "TMPDIR=$work" || continue
        [ "$(cat "$p/comm" 2>/dev/null)" = epa2a ] || continue
        grep -q '^State:[[:space:]]*Z' "$p/status" 2>/dev/null ||
            awk '{ print $1, $4 }' "$p/stat" 2>/dev/null
    done
}

# Pids of agents, or of ranks: those whose parent is an agent.
agents() { ours | awk '{ parent[$1] = $2 } END { for (p in parent) if (!(parent[p] in parent)) print p }'; }
ranks() { ours | awk '{ parent[$1] = $2 } END { for (p in parent) if (parent[p] in parent) print p }'; }

# Until all four ranks are there, and then some.
under_way() {
    local i
    for i in $(seq 500); do
        [ "$(ranks | wc -l)" = 4 ] && break
        sleep 0.02
    done
    [ "$i" != 500 ] || fail "the ranks never came"
    sleep 1
}

mpi=(--set launcher=mpi)
endless=(--set launcher=mpi --set bench.iterations=1000000)
case $kind in
verify) # as users start it: the launcher is found
    job 4 verify "$config"
    ends 0
    [ "$(grep -c '^# epa2a verify' "$work/out")" = 1 ] || fail "not one report"
    grep -q '4 ranks by mpi' "$work/out" || fail "the report does not say that it was mpi"
    grep -q 'Open MPI: OMPI_COMM_WORLD_RANK=0 of OMPI_COMM_WORLD_SIZE=4' "$work/out" ||
        fail "the report does not say how it was found"
    ;;
again)
    job 4 bench "$config" "$config" "$config" "${mpi[@]}"
    ends 0
    [ "$(grep -c '^# epa2a bench' "$work/out")" = 3 ] || fail "not three reports"
    ;;
refused)
    job 2 verify "$config" "${mpi[@]}"
    ends 2
    says '4.*OMPI_COMM_WORLD_SIZE=2'
    alone
    ends 2
    says 'not started by mpirun.*mpirun -n 8 epa2a bench X.yaml'
    alone OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=4
    ends 2
    says 'MPI says rank 0 of 1, and the environment Open MPI: OMPI_COMM_WORLD_RANK=0 of OMPI_COMM_WORLD_SIZE=4'
    ;;
kill)
    job 4 bench "$config" "$config" "${endless[@]}"
    under_way
    kill -KILL "$(ranks | shuf -n 1)"
    ends 5
    says 'rank [0-3] .*was killed by signal 9 \(Killed\)'
    says 'was lost in an earlier run, and cannot be started again'
    ;;
setup) # a rank that dies while MPI starts: all know of it, and the document says so
    job 4 bench "$config" "${endless[@]}" --json "$work/out.json"
    for _ in $(seq 2000); do
        [ "$(ranks | wc -w)" = 4 ] && break
        sleep 0.005
    done
    kill -KILL "$(ranks | tail -n 1)"
    ends 5
    says 'rank [0-3] .*was killed by signal 9 \(Killed\)'
    grep -q '"status": "died"' "$work/out.json" || fail "no document says that a rank died"
    ;;
term)
    job 4 bench "$config" "${endless[@]}"
    under_way
    kill -TERM "$(agents | shuf -n 1)"
    ends 143
    ;;
esac
exit "$failed"
