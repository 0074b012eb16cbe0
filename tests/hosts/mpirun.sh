#!/bin/bash
# mpirun on one host: promises of launcher mpi that need no network.
#   mpirun.sh EPA2A CONFIG KIND [LIBRARY]
#     KIND: verify    only rank 0 reports, and the report names the launcher
#           again     several launches of one command, in the processes of the first
#           refused   outside of mpirun, with another size, with variables of another job
#           kill      a rank in mid-run
#           crash     a rank in mid-run, and the launches after it; Open MPI 4.1 may hang
#           setup     a rank while MPI starts
#           join      a rank that has left MPI_Init and not connected: LIBRARY stops it there
#           term      one of the processes receives SIGTERM
#           leave     a rank is stopped as it leaves MPI: LIBRARY is loaded before MPI
#           orphan    the starter of a rank ends before the rank has met the others
set -u
epa2a=$1 config=$2 kind=$3
outer=${TMPDIR-/tmp}
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
export TMPDIR=$work
. "$(dirname "$0")/../faults/late.sh"
. "$(dirname "$0")/../contract/algorithm/mpirun.sh"
needs_mpirun "$epa2a"
# Sanitizers report a crash themselves and end the process; here the program handles the signal.
export ASAN_OPTIONS=${ASAN_OPTIONS-}:handle_segv=0 TSAN_OPTIONS=${TSAN_OPTIONS-}:handle_segv=0

fail() {
    echo "FAIL: $*"
    sed 's/^/    /' "$work/err" "$work/out" | tail -n 40
    failed=1
}
says() { grep -Eq -- "$1" "$work/err" || fail "nobody says: $1"; }

# job SIZE ARGS: mpirun in the background; for root it needs two variables
job() {
    local size=$1
    shift
    timeout -k 5 100 mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$size" "$epa2a" "$@" \
        >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
}

# alone VARIABLES: the program as in a shell of a job, or outside of a job
alone() {
    env "$@" timeout -k 5 100 "$epa2a" verify "$config" --set launcher=mpi \
        >"$work/out" 2>"$work/err" </dev/null &
    pid=$!
}

# end_hung_mpirun: ends an mpirun that stays for 15 s after all its ranks have ended. mpirun of Open MPI 4.1
# may wait forever in PMIx_server_finalize() after ranks that did not call MPI_Finalize().
hung='' ranks=()
end_hung_mpirun() {
    local child seen=${#ranks[@]} n=0
    while runs "$pid" && [ "$n" -lt 75 ]; do
        rest 0.2
        find_processes
        [ ${#ranks[@]} = 0 ] || { seen=yes n=0; }
        [ "$seen" = 0 ] || n=$((n + 1))
    done
    runs "$pid" || return
    hung=yes
    echo "again: mpirun itself hangs; all ranks have ended"
    find_children "$pid"
    for child in $children_of; do
        grep -s . "/proc/$child/task"/*/{comm,wchan} /dev/null
        kill -KILL "$child"
    done
}

ends() {
    local code
    end_hung_mpirun
    wait "$pid"
    code=$?
    [ "$code" = "$1" ] || [ -n "$hung" ] || { [ "$kind" = leave ] && mpirun_failed "$work/err"; } || fail "exit code $code, not $1"
    none_left
}

# Waits until all four ranks exist.
all_come() {
    local i
    for i in $(seq 2000); do
        find_processes
        [ ${#ranks[@]} = 4 ] && return
        rest 0.005
    done
    fail "the ranks never came"
}

# catches_term PID: true if the process blocks SIGTERM, to read it from a descriptor
catches_term() {
    local blocked
    blocked=$(sed -n 's/^SigBlk:[[:space:]]*//p' "/proc/$1/status" 2>/dev/null)
    [ $((0x${blocked:-0} & 0x4000)) != 0 ]
}

# all_iterate: waits until all ranks have left MPI_Init and iterate, each in one process.
all_iterate() {
    local one
    all_come
    for one in "${ranks[@]}"; do
        until "$epa2a" status "${one#* }" --json - 2>/dev/null | grep -Eq '"iteration": *[1-9]' || ! runs "${one#* }"; do rest 0.05; done
    done
    find_processes
    [ ${#ranks[@]} = 4 ] || fail "4 ranks are ${#ranks[@]} processes: ${ranks[*]}"
}

mpi=(--set launcher=mpi)
endless=(--set launcher=mpi --set bench.iterations=1000000)
case $kind in
verify) # as users start it: the launcher is detected
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
kill) # mpirun ends the job
    job 4 bench "$config" "${endless[@]}" --json "$work/out.json"
    all_iterate
    victim=${ranks[RANDOM % 4]}
    kill -KILL "${victim#* }"
    ends 137
    says "rank ${victim% *} \(host .*was killed by signal 9 \(Killed\)"
    [ "${victim% *}" = 0 ] || grep -q '"lost_ranks": *\[\]' "$work/out.json" || fail "rank 0 lacks the samples of rank ${victim% *}"
    ;;
crash) # the process of the rank reports the signal, and mpirun learns of no death
    job 4 bench "$config" "$config" "${endless[@]}"
    all_iterate
    kill -SEGV "${ranks[RANDOM % 4]#* }"
    ends 5
    says 'rank [0-3] \(host .*was killed by signal 11 \(Segmentation fault\)'
    says 'was lost in an earlier run, and this job cannot start it again'
    ;;
setup) # a rank dies while MPI starts: mpirun or rank 0 reports the signal, and rank 0 has a document
    job 4 bench "$config" "${endless[@]}" --json "$work/out.json"
    all_come
    for one in "${ranks[@]}"; do # mpirun sends SIGTERM to rank 0, which then writes the document
        until [ "${one% *}" != 0 ] || catches_term "${one#* }" || ! runs "${one#* }"; do rest 0.005; done
    done
    for one in "${ranks[@]}"; do [ "${one% *}" != 3 ] || kill -KILL "${one#* }"; done
    ends 137
    says 'rank 3 .*(was killed by|exited on) signal 9 \(Killed\)'
    grep -Eq '"status": "(died|interrupted)"' "$work/out.json" || fail "no document says that the run ended early"
    ;;
join) # mpirun sends SIGKILL to rank 0 one second after SIGTERM
    LD_PRELOAD=$4 job 4 bench "$config" "${endless[@]}" --json "$work/out.json"
    until [ "$(grep -cE '^rank (0 has sent its address|1 stops)' "$work/err")" = 2 ] || ! runs "$pid"; do rest 0.01; done
    find_processes
    for one in "${ranks[@]}"; do [ "${one% *}" != 1 ] || kill -KILL "${one#* }"; done
    ends 137
    says 'rank 1 .*(was killed by|exited on) signal 9 \(Killed\)'
    grep -Eq '"status": "(died|interrupted)"' "$work/out.json" || fail "no document says that the run ended early"
    ;;
term)
    job 4 bench "$config" "${endless[@]}"
    all_come
    victim=${ranks[RANDOM % 4]#* }
    until catches_term "$victim" || ! runs "$victim"; do rest 0.005; done
    kill -TERM "$victim"
    ends 143
    ;;
leave) # MPI itself has no limit. mpirun reports that a process did not finalize, or crashes.
    LD_PRELOAD=$4 job 4 verify "$config" "${mpi[@]}"
    ends 1
    says 'rank [0-3] \(host .*, pid [0-9]+\) did not leave within 30 s after its last run'
    grep -q '^# epa2a verify' "$work/out" || fail "no report"
    ;;
orphan) # rank 0 never exists: no rank waits for it until launcher.start
    OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=4 bash -c '"$@" & sleep 1' - \
        "$epa2a" verify "$config" "${mpi[@]}" --set launcher.start=60s >"$work/out" 2>"$work/err" </dev/null
    for _ in $(seq 2000); do
        find_processes
        [ ${#ranks[@]} != 0 ] || break
        rest 0.005
    done
    none_left
    ;;
esac
tries=${TRIES-1}
if [ "$tries" -lt 3 ] && { [ -n "$hung" ] || { [ "$failed" = 1 ] && mpirun_failed "$work/err"; }; }; then
    rm -rf "$work"
    TRIES=$((tries + 1)) TMPDIR=$outer exec bash "$0" "$@"
fi
exit "$failed"
