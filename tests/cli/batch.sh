#!/bin/bash
# batch.sh EPA2A CONFIG mpirun|env: several shapes from one file, in processes started by other
# programs. All processes make all runs in one order, a failed run does not end the batch, and
# processes with different runs report it. Exits with 77 without mpirun.
set -u
epa2a=$1 config=$2 launch=$3
work=$(mktemp -d) || exit 99
trap 'rm -rf "$work"' EXIT
if [ "$launch" = mpirun ]; then
    . "$(dirname "$0")/../contract/algorithm/mpirun.sh"
    needs_mpirun "$epa2a"
fi
cat >"$work/batch.yaml" <<END
include: $config
ranks: 2
runs:
  small: {moe.max_tokens: 2}
  narrow: {algorithm.capacity: 0.3, tokens: full}
  large: {moe.max_tokens: 64, bench.input_sets: 2}
  nowhere: {transport: nowhere}
repeat: 2
bench: {iterations: 5}
END

# LeakSanitizer would report memory that MPI leaves behind. The test itself is about exit codes.
export ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0"
export MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 10000)) WORLD_SIZE=2 LOCAL_WORLD_SIZE=2

# both ARGS0 -- ARGS1: starts rank 0 and rank 1 with these arguments; sets code and code1.
both() {
    local first=()
    while [ "$1" != -- ]; do
        first+=("$1")
        shift
    done
    shift
    RANK=1 LOCAL_RANK=1 timeout -k 5 100 "$epa2a" "$@" >"$work/out1" 2>"$work/err1" &
    RANK=0 LOCAL_RANK=0 timeout -k 5 100 "$epa2a" "${first[@]}" >"$work/out" 2>"$work/err"
    code=$?
    wait $!
    code1=$?
}

# launched ARGS: starts all ranks with these arguments
launched() {
    if [ "$launch" = env ]; then
        both "$@" -- "$@"
        return
    fi
    run "$work/out" "$work/err" 2 env -u MASTER_ADDR -u MASTER_PORT -u WORLD_SIZE -u LOCAL_WORLD_SIZE "$epa2a" "$@"
    code=$? code1=0
}

launched bench "$work/batch.yaml" --shuffle 3 --csv "$work/rows.csv" --json "$work/a.json"

failed=0
fail() {
    echo "FAIL: $*"
    sed 's/^/    /' "$work/err" "$work/rows.csv"
    failed=1
}
[ $code = 2 ] || fail "exit code $code, not 2"
[ "$(cut -d, -f2,9,10 "$work/rows.csv" | tail -n +2 | tr '\n' ' ')" = \
    'small #1,ok,ok small #2,ok,ok narrow #1,failed,config narrow #2,failed,config large #1,ok,ok large #2,ok,ok nowhere #1,failed,config nowhere #2,failed,config ' ] ||
    fail "the rows are others"
[ "$(grep -c '"verb": "bench"' "$work/a.json")" = 6 ] || fail "not six results"

# All ranks meet a stop rule after the same sample; rank 0 evaluates the expectations.
launched bench "$config" --set ranks=2 --set 'bench={iterations: 5000, ci95: 1000, min_iterations: 12}' \
    --set expect.median=1ns --quiet --json "$work/c.json"
[ $code1 = 0 ] || fail "exit code $code1 of rank 1, not 0"
[ $code = 1 ] || fail "exit code $code, not 1"
[ "$(grep -c 'error: expected total median <= ' "$work/err")" = 1 ] || fail "not one says what was missed"
grep -q '"reason": "ci95"' "$work/c.json" || fail "the rule was not met"
[ "$(grep -c '"samples": 12,' "$work/c.json")" = 3 ] || fail "ranks have other samples, or there are not 12"

if [ "$launch" = env ]; then
    # Rank 1 may belong to another job: rank 0 waits for the right one.
    both verify "$work/batch.yaml" --quiet --only 'small*' --set launcher.start=10s -- \
        verify "$work/batch.yaml" --quiet --only 'l*' --set launcher.start=10s
    [ "$code $code1" = '4 2' ] || fail "exit codes $code and $code1, not 4 and 2"
    grep -q 'was started with another experiment: moe.max_tokens: 64 there, 2 here' "$work/err" ||
        fail "nobody says that the processes do not agree"
fi
exit $failed
