#!/bin/bash
# Between hosts with two networks ranks listen at the one that leads to rank 0 and nowhere else.
#   listeners.sh EPA2A CABLE CONFIG
set -u
. "$(dirname "$0")/hosts.sh"
enter "$@"
epa2a=$1 cable=$2 config=$3
needs "$epa2a" env ucx

# Local addresses of TCP sockets that listen on HOST, as /proc/net has them.
listens() {
    on "$1" awk '$4 == "0A" { sub(":.*", "", $2); print $2 }' /proc/net/tcp /proc/net/tcp6
}

hosts_up 2 "$cable"
for i in 1 2; do
    ip link add "second_$i" type veth peer name eth1 netns "$(cat "$work/host$i")" || exit 99
    on "host$i" ip address add "10.2.0.$i/24" dev eth1
    on "host$i" ip link set dev eth1 up
    ip link set dev "second_$i" up
done
unset UCX_TLS UCX_NET_DEVICES
start env "host1 host1 host2 host2" "$epa2a" bench "$config" --set ranks=4 --set transport=ucx \
    --set bench.iterations=1000000 --set bench.warmup=0 --timeout 20s --set bench.max_time=2s
found=
while kill -0 $pids 2>/dev/null; do
    found=$(printf '%s\n' "$found" $(listens host1) $(listens host2) | sort -u)
    sleep 0.05
done
finish
[ "$codes" = "0 0 0 0" ] || { cat "$work"/err.*; echo "FAIL: exit codes $codes"; exit 1; }
grep -q 'tcp/eth0' "$work/out.0" || { cat "$work/out.0"; echo "FAIL: not over tcp/eth0"; exit 1; }
found=$(echo $found)
[ "$found" = "0100010A 0200010A" ] || { echo "FAIL: they listened at $found, not at 10.1.0.1 and 10.1.0.2 alone"; exit 1; }
