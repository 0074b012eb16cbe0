#!/bin/bash
# Runs a tool of compute-sanitizer over `epa2a verify` with small shapes; it must report no errors.
#   sanitizer.sh EPA2A CONFIG PROBE TOOL [ALGORITHM]
# TOOL: memcheck | racecheck | synccheck | initcheck. ALGORITHM: default ll_v2. PROBE
# (sanitizer_probe.c) first makes an error that the tool must report, so that an empty report means
# something. Ranks are threads: two on two GPUs, or one. The program is $COMPUTE_SANITIZER, or the
# one in the folder of CUDA.
set -u
epa2a=$1 config=$2 probe=$3 tool=$4 algorithm=${5:-ll_v2}
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
limit=100 # seconds for one run
failed=0

skip() {
    echo "SKIP: $*"
    exit 77
}

find_sanitizer() {
    local at
    for at in "${COMPUTE_SANITIZER:-}" "$(command -v compute-sanitizer)" \
        "${CUDA_HOME:-/usr/local/cuda}/bin/compute-sanitizer"; do
        [ -n "$at" ] && [ -x "$at" ] && echo "$at" && return 0
    done
    return 1
}

# sanitized TOOL PROGRAM ARGS: writes the report to $work/out. The tool checks kernels only:
# plugins check the results of driver calls, some of which fail on purpose.
sanitized() {
    local with=$1
    shift
    timeout -k 5 "$limit" "$sanitizer" --tool "$with" --target-processes all \
        --require-cuda-init no --report-api-errors no "$@" >"$work/out" 2>&1
}

# Prints the number of summaries with errors in $work/out.
findings() { grep -c '^=* .*SUMMARY: [1-9]' "$work/out"; }
summaries() { grep -c '^=* .*SUMMARY: ' "$work/out"; }

verify() {
    local set=() s
    for s in "$@"; do set+=(--set "$s"); done
    # Under initcheck a memset of memory mapped by cuMemMap() fails in the driver.
    [ "$tool" = initcheck ] && set+=(--set transport.memory=ipc)
    case $algorithm in
        allgather) ;;
        ag_gemm_2d) set=(--set gemm.m=256 --set gemm.n=256 --set gemm.k=512 "${set[@]}") ;;
        *) set=(--set moe.hidden=512 --set moe.max_tokens=8 --set moe.experts=8 "${set[@]}") ;;
    esac
    command=("$epa2a" verify "$config" --set "algorithm.name=$algorithm" "${set[@]}"
        --set launcher=thread --set verify.iterations=3 --set timeout=60s)
}

# One rank per GPU, at most two; initcheck does not see stores of other ranks.
count_ranks() {
    for ranks in 2 1; do
        [ "$tool" = initcheck ] && [ "$ranks" = 2 ] && continue
        verify "ranks=$ranks"
        "${command[@]}" >"$work/out" 2>&1 && return
    done
    skip "$(grep 'error: ' "$work/out" | tail -n 1)"
}

# Checks that the tool reports the error of the probe.
check_tool() {
    local with=$tool
    [ "$tool" = synccheck ] && with=memcheck # needs no kernel that may hang
    sanitized "$with" "$probe" "$with"
    [ "$(findings)" -gt 0 ] && return
    grep -q 'not supported' "$work/out" && skip "$(grep -m 1 'not supported' "$work/out")"
    echo "FAIL: $with does not find what $probe does on purpose:"
    sed 's/^/    /' "$work/out"
    exit 1
}

check() {
    local code
    verify "ranks=$ranks" "$@"
    sanitized "$tool" "${command[@]}"
    code=$?
    if [ "$code" = 0 ] && [ "$(findings)" = 0 ] && [ "$(summaries)" -gt 0 ]; then
        echo "ok   $tool, ranks $ranks: $*"
        return
    fi
    echo "FAIL $tool, ranks $ranks: $*: exit code $code, $(findings) of $(summaries) summaries with findings"
    head -n 100 "$work/out" | sed 's/^/    /'
    failed=1
}

sanitizer=$(find_sanitizer) || skip "there is no compute-sanitizer on PATH or with CUDA"
count_ranks
check_tool
case $algorithm in
    ll_v2)
        check algorithm.layout=expert
        check algorithm.dedup=true algorithm.combine_dtype=fp8 algorithm.recv_layout=padded
        check algorithm.dedup=true algorithm.combine_dedup=false routing.kind=masked
        check algorithm.layout=rank algorithm.dispatch_dtype=native routing.kind=masked
        check algorithm.dedup=true algorithm.dispatch_dtype=native algorithm.fuse_expert=true moe.dtype=f16
        ;;
    ll_v1)
        check algorithm.exchange=push
        check algorithm.exchange=pull algorithm.dispatch_dtype=native routing.kind=masked
        ;;
    token_flag)
        check algorithm.flag_granularity=token algorithm.fuse_expert=true moe.dtype=f16
        check algorithm.flag_granularity=rank algorithm.counter_reset=memset algorithm.work_partition=by_source
        check algorithm.dispatch_dtype=fp8 algorithm.chunks=3 routing.kind=masked
        ;;
    fused)
        # Few tokens with fixed places, picked rows, and counted rows.
        for tokens in 8 100 700; do
            check moe.max_tokens=$tokens moe.experts=16 moe.topk=4 tokens=random
            check moe.max_tokens=$tokens moe.experts=16 moe.topk=4 tokens=random algorithm.dispatch_dtype=fp8 \
                expert.weights=fp8
        done
        check moe.max_tokens=700 algorithm.tail=true algorithm.dispatch_dtype=fp8 expert.weights=fp8
        ;;
    ag_gemm_2d)
        check gemm.dtype=bf16
        check gemm.dtype=fp8 gemm.m=200
        ;;
    allgather)
        check algorithm.mode=push algorithm.chunks=3
        check algorithm.mode=pull
        ;;
    *)
        echo "sanitizer.sh: there are no runs for $algorithm"
        failed=1
        ;;
esac
exit "$failed"
