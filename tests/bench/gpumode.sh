#!/bin/bash
# The shapes of GPU MODE's contest for all2all (configs/gpumode-e*.yaml), taking turns: for each
# algorithm the mean of wall times, as the contest takes it, the median of that over rounds, and
# the geometric mean over shapes, by which the contest ranks.
#   gpumode.sh EPA2A [ROUNDS [ALGORITHM...]] [-- SETTING...]
# SETTING: backend=cuda, bench.iterations=20. alltoallv is started by mpirun, all else by epa2a;
# $MPIRUN may say with which options.
set -u
epa2a=${1:?gpumode.sh EPA2A [ROUNDS [ALGORITHM...]] [-- SETTING...]}
shift
rounds=3 algorithms=() settings=()
[[ ${1-} =~ ^[0-9]+$ ]] && { rounds=$1; shift; }
while [ $# -gt 0 ] && [ "$1" != -- ]; do algorithms+=("$1"); shift; done
[ $# -gt 0 ] && shift
for s in "$@"; do settings+=(--set "$s"); done
[ ${#algorithms[@]} -gt 0 ] || algorithms=(ll_v2)
folder=$(cd "$(dirname "$0")/../.." && pwd)/configs
read -ra mpirun <<<"${MPIRUN:-mpirun --oversubscribe --bind-to none}"
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
mapfile -t configs < <(printf "%s\n" "$folder"/gpumode-e*.yaml | sort -V)

# The mean wall time of one algorithm and shape, in us.
once() {
    local algorithm=$1 config=$2 launch=()
    if [ "$algorithm" = alltoallv ]; then launch=("${mpirun[@]}" -n "$(ranks "$config")"); fi
    timeout 300 "${launch[@]}" "$epa2a" bench "$config" --set "algorithm.name=$algorithm" \
        "${settings[@]}" >"$work/out" 2>"$work/err" || { cat "$work/err" >&2; return 1; }
    sed -n 's/^# wall: mean \([0-9.]*\) us.*/\1/p' "$work/out" | grep .
}

ranks() { "$epa2a" config show "$1" "${settings[@]}" | sed -n 's/^ranks: //p'; }

for ((round = 0; round < rounds; round++)); do
    for config in "${configs[@]}"; do
        for algorithm in "${algorithms[@]}"; do
            once "$algorithm" "$config" >>"$work/$algorithm-${config##*/}" || {
                echo "gpumode.sh: $algorithm, ${config##*/}: no wall time" >&2
                exit 1
            }
        done
    done
done

middle() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
printf '%-14s' "mean us, of $rounds"
for config in "${configs[@]}"; do
    name=${config##*/gpumode-}
    printf ' %12s' "${name%.yaml}"
done
printf ' %12s\n' 'geom. mean'
for algorithm in "${algorithms[@]}"; do
    for config in "${configs[@]}"; do middle <"$work/$algorithm-${config##*/}"; done |
        awk -v name="$algorithm" '{ row = row sprintf(" %12.1f", $1); logs += log($1) }
            END { printf "%-14s%s %12.1f\n", name, row, exp(logs / NR) }'
done
