#!/bin/bash
# Between hosts that are namespaces of this one: ll_v2 over UCX's tcp and what one writes with MPI,
# over the same links, taking turns. Medians over rounds, and ratios to alltoallv of the same round.
#   hosts.sh EPA2A CABLE [ROUNDS [PLACES [SETTING...]]]   PLACES: "host1 host2", the host of each rank;
#                                                         SETTING: moe.max_tokens=32
. "$(dirname "$0")/../hosts/hosts.sh"
[ $# -ge 2 ] || { echo "usage: $0 EPA2A CABLE [ROUNDS [PLACES [SETTING...]]]" >&2; exit 2; }
enter "$@"
set -u
epa2a=$1 rounds=${3:-5} places=${4:-host1 host2}
needs "$epa2a" mpirun ucx
hosts_up "$(tr ' ' '\n' <<<"$places" | sort -u | wc -l)" "$2"
shift $(($# < 4 ? $# : 4))
folder=$(cd "$(dirname "$0")/../.." && pwd)/configs
export UCX_NET_DEVICES=eth0 UCX_TLS=tcp,self

# NAME|CONFIG|SETTINGS
ways=(
    "alltoallv|alltoallv|transport=ucx" # which carries the barriers around a sample, no rows
    "ll_v2|ll_v2-ucx|transport.tls=tcp,self"
    "ll_v2, once|ll_v2-ucx|transport.tls=tcp,self algorithm.dedup=true"
    "ll_v2, layout: rank|ll_v2-ucx|transport.tls=tcp,self algorithm.layout=rank"
)

# The medians of dispatch, combine and total, in us.
once() {
    local config=$1 set=(--set "ranks=$(wc -w <<<"$places")") s
    shift
    for s in "$@"; do set+=(--set "$s"); done
    start mpirun "$places" "$epa2a" bench "$folder/$config.yaml" --set bench.iterations=100 "${set[@]}"
    finish
    [ "$codes" = 0 ] || { tail -n 5 "$work/err.0" >&2; return 1; }
    awk '$1 ~ /^(dispatch|combine|total)$/ && $3 + 0 > 0 { m[$1] = $3 }
        END { print m["dispatch"], m["combine"], m["total"] }' "$work/out.0"
}

for ((round = 0; round < rounds; round++)); do
    for i in "${!ways[@]}"; do
        IFS='|' read -r _ config settings <<<"${ways[i]}"
        # shellcheck disable=SC2086
        once "$config" ${settings-} "$@" >>"$work/way.$i" || exit 1
    done
done

middle() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
printf '%-28s %10s %10s %10s %14s\n' "$places, $rounds rounds" dispatch combine total 'of alltoallv'
for i in "${!ways[@]}"; do
    IFS='|' read -r name _ <<<"${ways[i]}"
    printf '%-28s' "$name"
    for column in 1 2 3; do
        printf ' %10.1f' "$(awk -v c=$column '{ print $c }' "$work/way.$i" | middle)"
    done
    printf ' %14.2f\n' "$(paste -d' ' "$work/way.$i" "$work/way.0" | awk '{ print $3 / $6 }' | middle)"
done
