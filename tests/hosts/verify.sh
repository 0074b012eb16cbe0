#!/bin/bash
# An experiment over ucx between hosts that are namespaces: every rank of every launch must be right.
#   verify.sh EPA2A CABLE CONFIG LAUNCH LINK PLACES [SETTING ...]
#     LAUNCH: mpirun | env, see hosts.sh
#     LINK    of host2: good | delay, 1 ms each way | loss, 1 % of packets each way
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

# resent HOST: segments that its TCP has sent again
resent() {
    on "$1" awk '$1 == "Tcp:" && n++ { print $13 }' /proc/net/snmp
}

size=$(wc -w <<<"$places")
hosts=$(tr ' ' '\n' <<<"$places" | sort -u | wc -l)
hosts_up "$hosts" "$cable"
case $link in
delay) link_is host2 1000 0 ;;
loss) link_is host2 0 1 ;;
esac

export UCX_TLS=${UCX_TLS-tcp,self} UCX_NET_DEVICES=eth0
args=(--set "ranks=$size" --set transport=ucx --set verify.iterations=200 --timeout 20s)
for setting in "$@"; do
    args+=(--set "$setting")
done

for _ in 1 2 3; do
    start "$launch" "$places" "$epa2a" verify "$config" "${args[@]}"
    finish
    [ "$launch" = mpirun ] && [ "${codes// /}" != 0 ] && mpirun_failed "$work/err.0" || break
done
cat "$work/out.0"
[ -z "$(tr -d '0 ' <<<"$codes")" ] || fail "exit codes $codes"
[ "$(cat "$work"/out.* | grep -c '^# epa2a verify')" = 1 ] || fail "not one report"
grep -Eq '^verified [0-9]+ iterations?: [0-9,]+ elements compared, 0 wrong$' "$work/out.0" ||
    fail "rank 0 does not say that nothing is wrong"
grep -q "^# $hosts nodes: host1 (rank" "$work/out.0" || fail "the report does not say $hosts nodes"
[ "$link" != loss ] || [ "$(resent host2)" -gt 0 ] || fail "no packet was lost"
none_left
[ -z "$(ls /dev/shm)" ] || fail "left in /dev/shm: $(ls /dev/shm)"
exit "$failed"
