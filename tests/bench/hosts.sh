#!/bin/bash
# `epa2a bench` between hosts, which are namespaces of this host, over UCX and links of MBIT each
# way (0: unlimited).
#   hosts.sh EPA2A MBIT PLACES mpirun|env CONFIG [OPTION...]
#     PLACES: "host1 host1 host2", the host of each rank. The runs of a CONFIG take turns.
. "$(dirname "$0")/../hosts/hosts.sh"
[ $# -ge 5 ] || { sed -n 3,4p "$0" >&2; exit 2; }
enter "$@"
set -u
epa2a=$1 mbit=$2 places=$3 launch=$4 config=$5
shift 5
needs "$epa2a" "$launch" ucx
hosts=$(tr ' ' '\n' <<<"$places" | sort -u)
hosts_up "$(wc -w <<<"$hosts")" none
for host in $hosts; do
    [ "$mbit" != 0 ] || break
    shape=(root tbf rate "${mbit}mbit" burst 256kb latency 100ms)
    tc qdisc add dev "to_$host" "${shape[@]}" && on "$host" tc qdisc add dev eth0 "${shape[@]}" || exit 1
done
export UCX_NET_DEVICES=eth0 UCX_TLS=${UCX_TLS-tcp,self}
start "$launch" "$places" "$epa2a" bench "$config" --set "ranks=$(wc -w <<<"$places")" "$@"
finish
cat "$work/out.0"
[ -z "$(tr -d '0 ' <<<"$codes")" ] || { tail -n 5 "$work"/err.* >&2; exit 1; }
