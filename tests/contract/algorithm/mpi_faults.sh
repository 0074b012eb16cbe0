#!/bin/bash
# A rank that stops, or is killed: the others end in time with that exit code, and say in which
# call they waited, or who it was.
#   faults.sh EPA2A CONFIG MODE SIGNAL CODE WORDS
set -u
. "$(dirname "$0")/mpirun.sh"
epa2a=$1 config=$2 mode=$3 signal=$4 want=$5 words=$6
needs "$epa2a"
command -v pgrep >/dev/null || skip "pgrep is missing (Debian: procps)"
err=$(mktemp) || exit 99
trap 'rm -f "$err"' EXIT

(run 4 "$epa2a" verify "$config" --set launcher=mpi --set algorithm=alltoallv --set "algorithm.mode=$mode" --timeout 2s \
    --set verify.iterations=10000000) >"$err" 2>&1 &
job=$!

# Each process that mpirun started has forked its rank.
ranks() {
    local agent
    for agent in $(pgrep -P "$(pgrep -P "$job")"); do
        pgrep -P "$agent"
    done
}

# How many have their heap mapped, which comes right before alltoallv is set up.
under_way() {
    local rank
    for rank in $(ranks); do
        grep -l memfd: "/proc/$rank/maps" 2>/dev/null
    done | wc -l
}

# Until all are that far, and then some.
for _ in $(seq 1000); do
    [ "$(under_way)" = 4 ] && break
    sleep 0.05
done
sleep 1
victim=$(ranks | shuf -n 1)
if [ -z "$victim" ]; then
    echo "FAIL: the ranks never came"
    cat "$err"
    kill "$job" 2>/dev/null
    exit 1
fi
kill -"$signal" "$victim"
since=$(date +%s)
wait "$job"
code=$?
took=$(($(date +%s) - since))
echo "exit code $code after $took s"
if [ "$code" = "$want" ] && [ "$took" -lt 30 ] && grep -qE "$words" "$err"; then
    exit 0
fi
echo "FAIL: exit code $code, not $want, or nobody says: $words"
kill -KILL "$victim" 2>/dev/null
cat "$err"
exit 1
