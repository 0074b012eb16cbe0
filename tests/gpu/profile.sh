#!/bin/bash
# The profile of fused, of kernels that run on CPUs: a file for each rank that `trace check` finds no
# flaw in, with the phases of all roles.
#   profile.sh EPA2A CONFIG PHASES [SETTING...]      PHASES: those there must be, with ; between
set -u
epa2a=$1 config=$2
IFS=';' read -ra phases <<<"$3"
shift 3
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
set=(--set ranks=2 --set launcher=thread --set verify.iterations=2)
for s in "$@"; do set+=(--set "$s"); done
failed=0

fail() {
    echo "FAIL: $*"
    failed=1
}

"$epa2a" verify "$config" "${set[@]}" --set "algorithm.profile=$work/p" >"$work/out" 2>&1 || {
    cat "$work/out"
    exit 1
}
for rank in 0 1; do
    "$epa2a" trace check "$work/p.$rank.json" || fail "rank $rank: trace check"
    "$epa2a" trace summary "$work/p.$rank.json" >"$work/summary" || fail "rank $rank: trace summary"
    cat "$work/summary"
    for phase in "${phases[@]}"; do # rank, name, lanes
        grep -Eq "^ +$rank +$phase +[1-9][0-9]* " "$work/summary" || fail "rank $rank: no phase '$phase'"
    done
done
exit $failed
