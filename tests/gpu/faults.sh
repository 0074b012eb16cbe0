#!/bin/bash
# A rank whose kernels run on CPUs is killed or stopped by a planted fault, before the first stage of
# an iteration: how the run ends, and that another says whom it waited for, in which call. Rank 1 of two is it.
#   faults.sh EPA2A CONFIG kill|stop STAGE WAITS [SETTING ...]     WAITS: what a rank says that waits for it
set -u
epa2a=$1 config=$2 kind=$3 stage=$4 waits=$5
shift 5
set=(--set ranks=2 --set launcher=fork)
for setting in "$@"; do set+=(--set "$setting"); done
fault=(--set "fault.kind=$kind" --set fault.rank=1 --set fault.iteration=2)
case $kind in
kill) code=5 says="rank 1 \(pid [0-9]+\) was killed by signal 9 \(Killed\): $stage, iteration 2" limit=60s ;;
stop) code=4 says="rank 0, iteration [12], $waits" limit=2s fault+=(--set fault.for=60s) ;;
*) exit 2 ;;
esac
out=$("$epa2a" verify "$config" "${set[@]}" "${fault[@]}" --set "timeout=$limit" 2>&1)
got=$?
echo "$out"
[ $got = $code ] || { echo "FAIL: exit code $got, not $code"; exit 1; }
grep -Eq "error: $says" <<<"$out" || { echo "FAIL: no '$says'"; exit 1; }
