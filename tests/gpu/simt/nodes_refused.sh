#!/bin/bash
# Settings that do not go with between_nodes are refused before a rank exists, with the reason.
#   nodes_refused.sh EPA2A CONFIGS
set -u
epa2a=$1 configs=$2 failed=0
# refuses CONFIG WORDS SETTING...
refuses() {
    local config=$1 words=$2 out code set=()
    shift 2
    for one in "$@"; do set+=(--set "$one"); done
    out=$("$epa2a" verify "$configs/$config.yaml" --set ranks=4 --set ranks_per_node=2 "${set[@]}" 2>&1)
    code=$?
    [ $code = 2 ] && grep -q "$words" <<<"$out" && return
    echo "FAIL: $config $*: exit code $code, no '$words' in: $out"
    failed=1
}
refuses fused-nvlink 'stores to all ranks from its kernels, and with transport.between_nodes: shm' transport.between_nodes=shm
refuses ll_v2-nvlink 'set layout: expert and dedup: true, or layout: rank' transport.between_nodes=shm algorithm.dedup=false
refuses ll_v2-nvlink 'combine_mode: auto' transport.between_nodes=shm algorithm.layout=rank algorithm.combine_mode=pull
refuses token_flag-nvlink 'set chunks: 1' transport.between_nodes=shm algorithm.chunks=2
refuses token_flag-nvlink 'has 2 numbers, and there are 4 kernels' transport.between_nodes=shm 'algorithm.kernel_blocks=[1,2]'
refuses ll_v1-nvlink 'pushes blocks' transport.between_nodes=shm algorithm.exchange=pull
refuses allgather-nvlink 'reaches some by puts only; set mode: push' transport.between_nodes=shm algorithm.mode=pull
refuses allgather-nvlink "transport 'nvlink' cannot stand between nodes" transport.between_nodes=nvlink
refuses allgather-nvlink "no transport 'smh'" transport.between_nodes=smh
exit $failed
