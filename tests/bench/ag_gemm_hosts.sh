#!/bin/bash
# AllGather-GEMM between hosts that are namespaces of this one, with links shaped by tbf, in two levels
# and in one, taking turns: what a gather takes alone, the product alone, both; and what the links
# let one expect of a gather. Minima over rounds, in ms.
#   ag_gemm_hosts.sh EPA2A CABLE MBIT PLACES [ROUNDS [SETTING...]]
#     MBIT: of each host, in each direction; PLACES: "host1 host1 host2 host2", the host of each rank
. "$(dirname "$0")/../hosts/hosts.sh"
[ $# -ge 4 ] || { echo "usage: $0 EPA2A CABLE MBIT PLACES [ROUNDS [SETTING...]]" >&2; exit 2; }
enter "$@"
set -u
epa2a=$1 mbit=$3 places=$4 rounds=${5:-5}
needs "$epa2a" env ucx
names=$(tr ' ' '\n' <<<"$places" | sort -u)
hosts=$(wc -w <<<"$names") ranks=$(wc -w <<<"$places")
hosts_up "$hosts" "$2"
shift $(($# < 5 ? $# : 5))
m=1024 k=2048 settings=(--set "ranks=$ranks" --set ranks_per_node=0)
for s in "$@"; do
    settings+=(--set "$s")
    case $s in gemm.m=*) m=${s#*=} ;; gemm.k=*) k=${s#*=} ;; esac
done
for name in $names; do
    on "$name" tc qdisc replace dev eth0 root tbf rate "${mbit}mbit" burst 256k latency 50ms || exit 1
done
export UCX_NET_DEVICES=eth0 UCX_TLS=${UCX_TLS-all}
config=$(cd "$(dirname "$0")/../.." && pwd)/configs/ag_gemm-hosts.yaml

# gather alone, product alone, both
once() {
    start env "$places" "$epa2a" bench "$config" "${settings[@]}" --set "algorithm.gather=$1"
    finish
    [ -z "$(tr -d '0 ' <<<"$codes")" ] || { tail -n 5 "$work"/err.* >&2; return 1; }
    awk '/^# alone: gather/ { gather = $4; gemm = $7 } $1 == "total" { both = $2 }
        END { print gather + 0, gemm + 0, both }' "$work/out.0"
}

for ((round = 0; round < rounds; round++)); do
    for way in 2d 1d; do
        once $way >>"$work/$way" || exit 1
    done
done

# The smallest of a column, in ms.
least() { awk -v c="$2" '{ v = $c / 1000; if (NR == 1 || v < least) least = v } END { printf "%.1f", least }' "$work/$1"; }
printf '%-30s %10s %10s %10s %10s\n' "$ranks ranks, $mbit Mbit/s" expected gather gemm both
for way in 2d 1d; do
    # What the rows of a host's ranks take on its link: once for each other host, or each rank there.
    times=$((hosts - 1))
    [ $way = 2d ] || times=$((times * ranks / hosts))
    expected=$(awk -v b="$((m / hosts * k * 2 * times))" -v r="$mbit" 'BEGIN { printf "%.1f", b * 8 / r / 1e3 }')
    printf '%-30s %10s %10s %10s %10s\n' "gather: $way" "$expected" "$(least $way 1)" "$(least $way 2)" "$(least $way 3)"
done
