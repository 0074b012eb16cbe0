#!/bin/bash
# What alltoallv cannot do it says, and all ranks end.
#   refusals.sh EPA2A CONFIG PLUGINS
set -u
. "$(dirname "$0")/mpirun.sh"
epa2a=$1 config=$2 plugins=$3
needs "$epa2a"
err=$(mktemp) || exit 99
trap 'rm -f "$err"' EXIT
failed=0

# refused RANKS CODE WORDS SETTING...; RANKS 0: without mpirun, as what is known before ranks are
# there is refused anywhere
refused() {
    local ranks=$1 code=$2 words=$3 got setting args=()
    shift 3
    for setting in "$@"; do
        args+=(--set "$setting")
    done
    if [ "$ranks" = 0 ]; then
        timeout 60 "$epa2a" verify "$config" --set algorithm=alltoallv --plugin-path "$plugins" --set launcher=fork "${args[@]}" >"$err" 2>&1
        got=$?
    else
        (run "$ranks" "$epa2a" verify "$config" --set launcher=mpi --set algorithm=alltoallv --plugin-path "$plugins" "${args[@]}") >"$err" 2>&1
        got=$?
    fi
    if [ "$got" = "$code" ] && tr '\n' ' ' <"$err" | sed 's/ \+\(# \+\)\?/ /g' | grep -qE "$words"; then
        echo "ok: $words"
        return
    fi
    echo "FAIL: exit code $got, not $code, or nobody says: $words"
    sed 's/^/    /' "$err"
    failed=1
}

refused 0 3 'needs ranks that mpirun started: run mpirun -n 4 epa2a'
refused 0 2 'mode: shared needs all 4 ranks on one node, which has 2; set mode: messages' \
    algorithm.mode=shared ranks_per_node=2 transport=reorder transport.peers=node
refused 0 2 'dispatch_dtype: native cannot send input that is quantised already' algorithm.dispatch_dtype=native moe.input_dtype=fp8
for mode in messages shared; do
    refused 4 2 'would receive [0-9]+ rows and has room for [0-9]+: raise algorithm.capacity' \
        algorithm.mode=$mode algorithm.capacity=1.01 routing.kind=hot routing.share=0.9
done
exit $failed
