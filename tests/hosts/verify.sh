#!/bin/bash
# An experiment over ucx between hosts that are namespaces: every rank of every launch must be
# right.
#   verify.sh EPA2A CABLE CONFIG LAUNCH LINK PLACES [SETTING ...]
#     LAUNCH: mpirun | env, see hosts.sh
#     LINK    of host2: good | delay, 1 ms each way | loss, 1 % of packets each way | second: another network
#             exists, and ranks listen only at the address that leads to rank 0 | no-pmix: ranks of mpirun
#             cannot load libpmix, and meet at MASTER_ADDR
set -u
. "$(dirname "$0")/hosts.sh"
enter "$@"
epa2a=$1 cable=$2 config=$3 launch=$4 link=$5 places=$6
shift 6
needs "$epa2a" "$launch" ucx

failed=0
fail() {
    echo "FAIL: $*"
    tail -n 20 "$work"/out.* "$work"/err.* | sed 's/^/    /'
    failed=1
}

# listens HOST: local addresses of TCP sockets that listen there, in the format of /proc/net
listens() { on "$1" awk '$4 == "0A" { sub(":.*", "", $2); print $2 }' /proc/net/tcp /proc/net/tcp6; }

# resent HOST: number of segments that its TCP has sent again
resent() {
    on "$1" awk '$1 == "Tcp:" && n++ { print $13 }' /proc/net/snmp
}

size=$(wc -w <<<"$places")
environment=
if [ "$link" = no-pmix ]; then
    mkdir "$work/libraries"
    : >"$work/libraries/libpmix.so.2" # no library
    environment="LD_LIBRARY_PATH=$work/libraries"
fi
hosts=$(tr ' ' '\n' <<<"$places" | sort -u | wc -l)
hosts_up "$hosts" "$cable"
case $link in
delay) link_is host2 1000 0 ;;
loss) link_is host2 0 1 ;;
second)
    for i in 1 2; do
        ip link add "second_$i" up type veth peer name eth1 netns "$(cat "$work/host$i")" || exit 99
        on "host$i" ip address add "10.2.0.$i/24" dev eth1
        on "host$i" ip link set dev eth1 up
    done ;;
esac

[ "$link" = second ] || export UCX_TLS=${UCX_TLS-tcp,self} UCX_NET_DEVICES=eth0
args=(--set "ranks=$size" --set transport=ucx --set verify.iterations=200 --timeout 20s)
for setting in "$@"; do
    args+=(--set "$setting")
done

if [ "$link" = no-pmix ]; then
    start mpirun "$places" "$epa2a" verify "$config" "${args[@]}"
    finish
    grep -q 'the address of rank 0 is unknown .*; set MASTER_ADDR .*install libpmix' "$work/err.0" || fail "no rank asks for MASTER_ADDR"
    environment+=" MASTER_ADDR=host1 MASTER_PORT=29500 EPA2A_JOB_TOKEN=the_token_of_this_test"
fi
for _ in 1 2 3; do
    start "$launch" "$places" "$epa2a" verify "$config" "${args[@]}"
    while [ "$link" = second ] && kill -0 $pids 2>/dev/null; do
        found=$(printf '%s\n' ${found-} $(listens host1) $(listens host2) | sort -u)
        rest 0.05
    done
    finish
    [ "$launch" = mpirun ] && [ "${codes// /}" != 0 ] && mpirun_failed "$work/err.0" || break
done
cat "$work/out.0"
[ -z "$(tr -d '0 ' <<<"$codes")" ] || fail "exit codes $codes"
[ "$(cat "$work"/out.* | grep -c '^# epa2a verify')" = 1 ] || fail "not one report"
grep -Eq '^verified [0-9]+ iterations?: [0-9,]+ elements compared, 0 wrong$' "$work/out.0" ||
    fail "rank 0 does not say that nothing is wrong"
grep -q "^# $hosts nodes: host1 (rank" "$work/out.0" || fail "the report does not say $hosts nodes"
if [ "$link" = second ]; then
    grep -q 'tcp/eth0' "$work/out.0" || fail "not over tcp/eth0"
    [ "$(echo $found)" = "0100010A 0200010A" ] || fail "they listened at $found, not at 10.1.0.1 and 10.1.0.2 alone"
fi
[ "$link" != loss ] || [ "$(resent host2)" -gt 0 ] || fail "no packet was lost"
nothing_left
exit "$failed"
