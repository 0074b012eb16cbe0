#!/bin/bash
# What ag_gemm refuses, each in a sentence that names the option to change; and what a rank says that
# waits in vain.
#   refusals.sh EPA2A CONFIG
set -u
epa2a=$1 config=$2 failed=0

# says CODE WORDS SETTING...
says() {
    local wanted=$1 words=$2 out code args=()
    shift 2
    for s in "$@"; do args+=(--set "$s"); done
    out=$("$epa2a" verify "$config" "${args[@]}" 2>&1)
    code=$?
    if [ "$code" != "$wanted" ] || ! grep -Eq "$words" <<<"$out"; then
        echo "FAIL $*: exit code $code, wants $wanted and: $words"
        sed 's/^/    /' <<<"$out"
        failed=1
    fi
}

refuses() { says 2 "$@"; }

refuses 'gemm.k .*multiple of 8' gemm.k=100
refuses 'gemm.n .*multiple of ranks' gemm.n=401
refuses 'tokens.per_rank: 155 rows.*gemm.m' 'tokens=[150, 5, 0, 0]'
refuses 'tokens.min .*share' tokens.min=100
refuses 'tile_rows.*multiple of 32' algorithm.tile_rows=48
refuses 'backend.workers .1. are too few' algorithm.comm_worker=true
refuses 'ranks_per_node.*divide ranks' ranks=3 gemm.n=399 ranks_per_node=2 transport=reorder
refuses 'verify.order: pipelined' verify.order=pipelined
refuses "'moe' is no section for algorithm 'ag_gemm_2d'" moe.hidden=512
says 4 'tile of rows [0-9]+ to [0-9]+: rows [0-9]+ to [0-9]+ of rank 2, from rank 2 .signal' \
    tokens=full timeout=1s fault.kind=stop fault.rank=2 fault.iteration=2 fault.for=4s
exit "$failed"
