#!/bin/bash
# What allgather refuses, each in a sentence that names the option to change.
#   refusals.sh EPA2A CONFIG PLUGINS
set -u
epa2a=$1 config=$2 plugins=$3 failed=0

# refuses WORDS SETTING...
refuses() {
    local words=$1 out code args=()
    shift
    for s in "$@"; do args+=(--set "$s"); done
    out=$("$epa2a" verify "$config" --plugin-path "$plugins" "${args[@]}" 2>&1)
    code=$?
    if [ "$code" != 2 ] || ! grep -Eq "$words" <<<"$out"; then
        echo "FAIL $*: exit code $code, wants 2 and: $words"
        sed 's/^/    /' <<<"$out"
        failed=1
    fi
}

refuses 'allgather.row_bytes .*multiple of 16' allgather.row_bytes=100
refuses 'tokens.per_rank: 17 .*rank 1' 'tokens=[1, 17, 0, 0]'
refuses 'tokens.per_rank' 'tokens=[1, 2]'
refuses 'mode: push' algorithm.mode=pull transport=reorder
refuses 'blocks.*GPUs' algorithm.blocks=2
refuses 'verify.order: pipelined' verify.order=pipelined
refuses "'moe' is no section for algorithm 'allgather'" moe.hidden=512
exit "$failed"
