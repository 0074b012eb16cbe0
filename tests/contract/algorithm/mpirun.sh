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

# run RANKS COMMAND...: in place of this shell, which is then timeout, and mpirun its child. As root
# Open MPI wants to be asked twice. It leaves memory behind, of which LeakSanitizer would tell.
run() {
    local ranks=$1
    shift
    export ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0"
    exec timeout --foreground -k 5 150 mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" "$@"
}

if [ "$0" = "${BASH_SOURCE[0]}" ]; then
    epa2a=$1 ranks=$2
    shift 2
    needs_mpirun "$epa2a"
    [ "$ranks" != cases ] || exec "$@"
    run "$ranks" "$epa2a" "$@"
fi
