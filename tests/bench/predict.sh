#!/bin/bash
# What `epa2a predict` says of hosts that are namespaces of this one, with links as slow as tbf makes them, over what
# they took. The ranks of a host share its link.
#   predict.sh EPA2A CABLE CONFIG RATE DELAY_US PLACES [SETTING ...]
#     RATE in Mbit/s; DELAY_US each way, of all hosts but the first; PLACES: "host1 host1 host2", the host of each rank
set -u
. "$(dirname "$0")/../hosts/hosts.sh"
enter "$@"
epa2a=$1 cable=$2 config=$3 rate=$4 delay=$5 places=$6
shift 6
needs "$epa2a" mpirun ucx
size=$(wc -w <<<"$places")
hosts=$(tr ' ' '\n' <<<"$places" | sort -u | wc -l)
settings=(--set "ranks=$size" --set transport=ucx)
for setting in "$@"; do
    settings+=(--set "$setting")
done
hosts_up "$hosts" "$cable"
for i in $(seq "$hosts"); do
    [ "$delay" = 0 ] || [ "$i" = 1 ] || link_is "host$i" "$delay" 0
    tc qdisc add dev "to_host$i" root tbf rate "${rate}mbit" burst 64kb latency 200ms &&
        on "host$i" tc qdisc add dev eth0 root tbf rate "${rate}mbit" burst 64kb latency 200ms ||
        skip "this kernel has no tbf"
done
export UCX_TLS=${UCX_TLS-tcp,self,sysv,posix,cma} UCX_NET_DEVICES=eth0
start mpirun "$places" "$epa2a" bench "$config" --timeout 60s --json "$work/there.json" "${settings[@]}"
finish
[ -z "$(tr -d '0 ' <<<"$codes")" ] || { cat "$work"/err.* && exit 1; }
unset UCX_TLS UCX_NET_DEVICES
"$epa2a" predict "$config" --measured "$work/there.json" --link "${rate}Mbit/s,${delay}us,node" \
    --set "ranks_per_node=$((size / hosts))" "${settings[@]}"
