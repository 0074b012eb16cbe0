#!/bin/bash
# What an operation refuses, each in a sentence that names the option to change; and what a rank says
# that waits in vain.
#   refusals.sh EPA2A CONFIG allgather|ag_gemm|ag_gemm_cuda
set -u
epa2a=$1 config=$2 failed=0 only=()

# says CODE WORDS SETTING...
says() {
    local wanted=$1 words=$2 out code args=()
    shift 2
    for s in "$@"; do args+=(--set "$s"); done
    out=$("$epa2a" verify "$config" "${only[@]}" "${args[@]}" 2>&1)
    code=$?
    if [ "$code" != "$wanted" ] || ! tr '\n' ' ' <<<"$out" | sed 's/  */ /g' | grep -Eq "$words"; then
        echo "FAIL $*: exit code $code, wants $wanted and: $words"
        sed 's/^/    /' <<<"$out"
        failed=1
    fi
}

refuses() { says 2 "$@"; }

case $3 in
allgather)
    refuses 'allgather.row_bytes .*multiple of 16' allgather.row_bytes=100
    refuses 'tokens.per_rank: 17 .*rank 1' 'tokens=[1, 17, 0, 0]'
    refuses 'tokens.per_rank' 'tokens=[1, 2]'
    refuses 'mode: push' algorithm.mode=pull transport=reorder
    refuses 'blocks.*GPUs' algorithm.blocks=2
    refuses 'verify.order: pipelined' verify.order=pipelined
    refuses "'moe' is no section for algorithm 'allgather'" moe.hidden=512
    ;;
ag_gemm)
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
    ;;
ag_gemm_cuda)
    only=(--only "rows change*")
    refuses 'fp8 needs gemm.k .328. to be a multiple of 16' gemm.dtype=fp8
    refuses 'comm_worker is an option of hosts' algorithm.comm_worker=true
    refuses 'tile_rows of 128, not 256' algorithm.tile_rows=256
    refuses 'tile_cols of 128 or 256, not 64' algorithm.tile_cols=64
    refuses 'copy engines push rows; set algorithm.mode: push' algorithm.mode=pull algorithm.mover=copy_engine
    refuses 'comm_blocks .4. leaves none' algorithm.comm_blocks=4
    refuses 'ranks_per_node' ranks=3 ranks_per_node=2
    says 4 'tile of rows [0-9]+ to [0-9]+: rows [0-9]+ to [0-9]+ of rank 2, from rank 2 .its signal' \
        launcher=fork tokens=full timeout=1s algorithm.order=swizzle \
        fault.kind=stop fault.rank=2 fault.iteration=2 fault.for=6s
    ;;
*) exit 2 ;;
esac
exit "$failed"
