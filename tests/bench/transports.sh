#!/bin/bash
# The same layer over each way that this host has, taking turns: ll_v2 over shm, ucx and its
# transports, and what one writes with MPI. Medians over rounds, and ratios to ll_v2 over shm
# of the same round.
#   transports.sh EPA2A [RANKS [ROUNDS [SETTING...]]]     SETTING: moe.max_tokens=32
# Ranks are started by mpirun; $MPIRUN may say with which options.
set -u
epa2a=$1 ranks=${2:-2} rounds=${3:-5}
shift $(($# < 3 ? $# : 3))
folder=$(cd "$(dirname "$0")/../.." && pwd)/configs
read -ra mpirun <<<"${MPIRUN:-mpirun --bind-to none}"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
common=(--set "ranks=$ranks")
for s in "$@"; do common+=(--set "$s"); done

# NAME|CONFIG|SETTINGS
ways=(
    "shm|ll_v2-shm"
    "ucx, loads and stores|ll_v2-ucx"
    "ucx posix, puts|ll_v2-ucx|transport.tls=posix,self transport.direct=false algorithm.dedup=true"
    "ucx tcp, puts|ll_v2-ucx|transport.tls=tcp,self transport.direct=false algorithm.dedup=true"
    "shm, once|ll_v2-shm|algorithm.dedup=true"
    "alltoallv|alltoallv"
    "alltoallv, shared window|alltoallv-shared"
)

# The medians of dispatch, combine and total, in us.
once() {
    local config=$1 set=() s
    shift
    for s in "$@"; do set+=(--set "$s"); done
    timeout 120 "${mpirun[@]}" -n "$ranks" "$epa2a" bench "$folder/$config.yaml" "${common[@]}" \
        "${set[@]}" >"$work/out" 2>&1 || { tail -n 3 "$work/out" >&2; return 1; }
    awk '$1 ~ /^(dispatch|combine|total)$/ && $3 + 0 > 0 { m[$1] = $3 }
        END { print m["dispatch"], m["combine"], m["total"] }' "$work/out"
}

for ((round = 0; round < rounds; round++)); do
    for i in "${!ways[@]}"; do
        IFS='|' read -r name config settings <<<"${ways[i]}"
        # shellcheck disable=SC2086
        once "$config" $settings >>"$work/$i" || exit 1
    done
done

middle() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
printf '%-28s %10s %10s %10s %8s\n' "$ranks ranks, $rounds rounds" dispatch combine total 'of shm'
for i in "${!ways[@]}"; do
    IFS='|' read -r name _ <<<"${ways[i]}"
    printf '%-28s' "$name"
    for column in 1 2 3; do
        printf ' %10.1f' "$(cut -d' ' -f$column "$work/$i" | middle)"
    done
    printf ' %8.2f\n' "$(paste -d' ' "$work/$i" "$work/0" | awk '{ print $3 / $6 }' | middle)"
done
