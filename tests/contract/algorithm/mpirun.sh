#!/bin/bash
# mpirun for tests. Source it or run it:
#   mpirun.sh EPA2A RANKS ARGS...       epa2a ARGS with this number of ranks
#   mpirun.sh EPA2A cases COMMAND...    a command that runs mpirun
# Exits with 77 and the reason without mpirun or without the plugins for it.

skip() {
    echo "SKIP: $*"
    exit 77
}

# needs_mpirun EPA2A
needs_mpirun() {
    "$1" list launcher | grep -q '^  mpi ' || skip "built without launcher mpi"
    command -v mpirun >/dev/null || skip "mpirun is missing (Debian: openmpi-bin)"
    mpirun --version | grep -q 'Open MPI' || skip "this mpirun is not that of Open MPI"
}

# mpirun_failed ERR: mpirun failed and epa2a reports no cause. mpirun of Open MPI 4.1 may fail when
# ranks leave: it crashes in a thread of PMIx, or misses the exit of a rank on a machine that
# stands still for more than 2 s.
mpirun_failed() {
    local crashed
    crashed=$(sed -nE 's/^\[[^]:]*:([0-9]+)\] \*\*\* Process received signal.*/\1/p' "$1" | head -n 1)
    if [ -n "$crashed" ]; then
        ! grep -q "pid $crashed\b" "$1"
    else
        grep -q 'exiting improperly' "$1" && ! grep -qE 'error:|killed by signal|exited on signal' "$1"
    fi && echo "again: mpirun itself ended badly"
}

# run OUT ERR RANKS COMMAND...: runs mpirun, up to three times if mpirun itself fails. For root,
# Open MPI needs two variables. LeakSanitizer would report memory that MPI leaves behind.
run() {
    local out=$1 err=$2 ranks=$3 try code
    shift 3
    for try in 1 2 3; do
        ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0" timeout --foreground -k 5 150 \
            mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$@" >"$out" 2>"$err" </dev/null
        code=$?
        [ $code != 0 ] && mpirun_failed "$err" >&2 || break
    done
    return $code
}

if [ "$0" = "${BASH_SOURCE[0]}" ]; then
    epa2a=$1 ranks=$2
    shift 2
    needs_mpirun "$epa2a"
    [ "$ranks" != cases ] || exec "$@"
    work=$(mktemp -d) || exit 99
    run "$work/out" "$work/err" "$ranks" "$epa2a" "$@"
    code=$?
    cat "$work/out"
    cat "$work/err" >&2
    rm -r "$work"
    exit $code
fi
