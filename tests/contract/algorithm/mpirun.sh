#!/bin/bash
# mpirun for tests; sourced, or run:
#   mpirun.sh EPA2A RANKS ARGS...       epa2a ARGS as that many ranks
#   mpirun.sh EPA2A cases COMMAND...    the command, which runs such
# Where there is no mpirun, or none of the plugins that need one, 77 and why.

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

# mpirun_failed ERR: mpirun ended badly, and nobody of epa2a says why. That of Open MPI 4.1 may as ranks leave: it crashes
# in a thread of PMIx, or misses a rank that does not wait for longer than 2 s where the machine stands still.
mpirun_failed() {
    local crashed
    crashed=$(sed -nE 's/^\[[^]:]*:([0-9]+)\] \*\*\* Process received signal.*/\1/p' "$1" | head -n 1)
    if [ -n "$crashed" ]; then
        ! grep -q "pid $crashed\b" "$1"
    else
        grep -q 'exiting improperly' "$1" && ! grep -qE 'error:|killed by signal|exited on signal' "$1"
    fi && echo "again: mpirun itself ended badly"
}

# run OUT ERR RANKS COMMAND...: by mpirun, again where it fails itself, three times at most. As root Open MPI wants to be asked
# twice. It leaves memory behind, of which LeakSanitizer would tell.
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
