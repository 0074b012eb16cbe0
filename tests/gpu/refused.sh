#!/bin/bash
# Settings that kernels on CPUs cannot do are refused with the reason: those of nodes before a rank exists,
# or, with FUSED, where more rows arrive than there is room for.
#   refused.sh EPA2A CONFIGS [FUSED]      FUSED: verify_fused.yaml
set -u
epa2a=$1 configs=$2 fused=${3:-} failed=0
# refuses CONFIG WORDS SETTING...
refuses() {
    local config=$1 words=$2 out code set=()
    shift 2
    for one in "$@"; do set+=(--set "$one"); done
    out=$("$epa2a" verify "$config" "${set[@]}" 2>&1)
    code=$?
    [ $code = 2 ] && grep -q "$words" <<<"$out" && return
    echo "FAIL: $config $*: exit code $code, no '$words' in: $out"
    failed=1
}
if [ -z "$fused" ]; then
    nodes() { refuses "$configs/$1-nvlink.yaml" "$2" ranks=4 ranks_per_node=2 "${@:3}"; }
    nodes fused 'stores to all ranks from its kernels, and with transport.between_nodes: shm' transport.between_nodes=shm
    nodes ll_v2 'set layout: expert and dedup: true, or layout: rank' transport.between_nodes=shm algorithm.dedup=false
    nodes ll_v2 'combine_mode: auto' transport.between_nodes=shm algorithm.layout=rank algorithm.combine_mode=pull
    nodes token_flag 'set chunks: 1' transport.between_nodes=shm algorithm.chunks=2
    nodes token_flag 'has 2 numbers, and there are 4 kernels' transport.between_nodes=shm 'algorithm.kernel_blocks=[1,2]'
    nodes token_flag 'kernel_warps has 3 numbers' transport.between_nodes=shm 'algorithm.kernel_warps=[8,8,8]'
    nodes ll_v1 'pushes blocks' transport.between_nodes=shm algorithm.exchange=pull
    nodes allgather 'reaches some by puts only; set mode: push' transport.between_nodes=shm algorithm.mode=pull
    nodes allgather "transport 'nvlink' cannot stand between nodes" transport.between_nodes=nvlink
    nodes allgather "no transport 'smh'" transport.between_nodes=smh
else
    crowded() { refuses "$(dirname "$fused")/$1" algorithm.capacity ranks=2 launcher=thread algorithm.capacity=0.25 tokens=full timeout=5s "${@:2}"; }
    crowded verify.yaml
    crowded verify.yaml algorithm.dedup=true
    crowded verify.yaml algorithm.layout=rank
    crowded verify_ll_v1.yaml
    crowded verify_ll_v1.yaml algorithm.dispatch_dtype=native
    crowded verify_fused.yaml moe.max_tokens=600
fi
exit $failed
