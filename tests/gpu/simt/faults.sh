#!/bin/bash
# A rank whose kernels run on CPUs is killed or stopped before a call of the fused layer, by a planted
# fault: how the run ends, and that kernels of the others say whom they waited for, in which call.
#   faults.sh EPA2A CONFIG kill|stop
set -u
epa2a=$1 config=$2 kind=$3
set=(--set ranks=2 --set launcher=fork --set moe.max_tokens=8 --set moe.hidden=256 --set expert.ffn=128)
fault=(--set "fault.kind=$kind" --set fault.rank=1 --set fault.iteration=2)
case $kind in
kill) code=5 says='rank 1 \(pid [0-9]+\) was killed by signal 9 \(Killed\): layer, iteration 2' limit=60s ;;
stop)
    code=4 says='rank 0, iteration 2, layer: call 3: waited [0-9.]+ s for counts of rank 1: the last are of call 1'
    limit=2s fault+=(--set fault.for=60s) ;;
*) exit 2 ;;
esac
out=$("$epa2a" verify "$config" "${set[@]}" "${fault[@]}" --set "timeout=$limit" 2>&1)
got=$?
echo "$out"
[ $got = $code ] || { echo "FAIL: exit code $got, not $code"; exit 1; }
grep -Eq "error: $says" <<<"$out" || { echo "FAIL: no '$says'"; exit 1; }
