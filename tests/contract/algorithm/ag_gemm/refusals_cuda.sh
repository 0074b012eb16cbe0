#!/bin/bash
# What ag_gemm refuses on GPUs, each in a sentence that names the option to change; and what a rank says
# that waits in vain.
#   refusals_cuda.sh EPA2A CONFIG
set -u
epa2a=$1 config=$2 failed=0

# says CODE WORDS SETTING...
says() {
    local wanted=$1 words=$2 out code args=()
    shift 2
    for s in "$@"; do args+=(--set "$s"); done
    out=$("$epa2a" verify "$config" --only "rows change*" "${args[@]}" 2>&1)
    code=$?
    if [ "$code" != "$wanted" ] || ! tr '\n' ' ' <<<"$out" | sed 's/  */ /g' | grep -Eq "$words"; then
        echo "FAIL $*: exit code $code, wants $wanted and: $words"
        sed 's/^/    /' <<<"$out"
        failed=1
    fi
}

says 2 'fp8 needs gemm.k .328. to be a multiple of 16' gemm.dtype=fp8
says 2 'comm_worker is an option of hosts' algorithm.comm_worker=true
says 2 'tile_rows of 128, not 256' algorithm.tile_rows=256
says 2 'tile_cols of 128 or 256, not 64' algorithm.tile_cols=64
says 2 'copy engines push rows; set algorithm.mode: push' algorithm.mode=pull algorithm.mover=copy_engine
says 2 'comm_blocks .4. leaves none' algorithm.comm_blocks=4
says 2 'ranks_per_node' ranks=3 ranks_per_node=2
says 4 'tile of rows [0-9]+ to [0-9]+: rows [0-9]+ to [0-9]+ of rank 2, from rank 2 .its signal' \
    launcher=fork tokens=full timeout=1s algorithm.order=swizzle \
    fault.kind=stop fault.rank=2 fault.iteration=2 fault.for=6s
exit "$failed"
