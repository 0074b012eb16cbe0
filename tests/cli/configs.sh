#!/bin/sh
# configs.sh EPA2A FOLDER host|cuda [calls|layer]: reads and verifies every experiment of the folder
# with that backend (host: any except cuda), through epa2a.h with a third word, unchanged except for the numbers of iterations and tokens, with
# which 8 ranks would fill gigabytes. An experiment with launcher: mpi runs by mpirun. Exits with
# 77 and the reason if none can run; a reason other than a missing resource of this machine fails.
set -u
epa2a=$1 folder=$2 kind=$3 api=${4:-none}
out=$(mktemp -d) || exit 99
trap 'rm -rf "$out"' EXIT
lacks='no NVIDIA driver|there is a driver, but no GPU|the NVIDIA driver is for CUDA'
lacks="$lacks|ranks on this host and [0-9]+ GPU|has compute capability|but .* is available"
lacks="$lacks|this machine has no RDMA device|no port is active of RDMA device"
# Experiments that the public interface cannot run.
no_api=
[ "$api" = none ] || no_api="api: (epa2a.h has no (AllGather|traces)|layer needs an algorithm of moe)|allclose is for synthetic experts"
ran=0 skipped=0 failed=0

# A routing file in which tokens t and t + 1 have no common expert.
awk 'BEGIN { for (t = 0; t < 512; t++) { printf "{\"topk_ids\": [";
    for (k = 0; k < 8; k++) printf "%s%d", k ? ", " : "", (t * 8 + k) % 64;
    print "], \"topk_weights\": [0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]}" } }' >"$out/routes.jsonl"

if [ "$kind" = cuda ] && ! "$epa2a" list backend | grep -q '^  cuda '; then
    echo "SKIP: built without the plugins for GPUs"
    exit 77
fi

# Reason why launcher: mpi cannot run here; empty if it can.
no_mpi=
if ! "$epa2a" list launcher | grep -q '^  mpi '; then
    no_mpi="built without launcher mpi"
elif ! mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
    no_mpi="there is no mpirun of Open MPI (Debian: openmpi-bin)"
fi

# verify CONFIG ARGS. LeakSanitizer would report memory that MPI leaves behind.
verify() {
    if [ -n "$ranks" ]; then
        ASAN_OPTIONS="${ASAN_OPTIONS-}:detect_leaks=0" mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks" \
            "$epa2a" verify --quiet "$@"
    else
        "$epa2a" verify --quiet "$@"
    fi
}

for config in "$folder"/*.yaml; do
    base=$folder/$(sed -n 's/^include: *//p' "$config")
    if grep -q '^backend:.*cuda' "$config" $([ ! -f "$base" ] || echo "$base"); then is=cuda; else is=host; fi
    [ $is = "$kind" ] || continue
    # Replaces the timeout of the file, which a busy machine may exceed.
    set -- --set verify.iterations=1 --set timeout=120s --set api="$api"
    # Complete layers have real experts. Narrow rows bound the memory and the time for their weights.
    [ "$api" != layer ] || grep -qE 'name: (allgather|ag_)' "$config" ||
        set -- "$@" --set expert.kind=mlp --set expert.ffn=128 --set moe.hidden=256
    # token_flag computes only synthetic experts itself, which no layer has.
    [ "$api" = none ] || ! grep -q 'name: token_flag' "$config" || set -- "$@" --set algorithm.fuse_expert=false
    # Without them only layers of real experts have parts.
    [ "$api" != calls ] || grep -q 'kind: mlp' "$config" || ! grep -q 'name: token_flag' "$config" ||
        set -- "$@" --set algorithm.parts=0
    ! grep -qE 'max_tokens: (64|128|256)[,}]' "$config" || set -- "$@" --set moe.max_tokens=16
    ! grep -q '^profile:' "$config" || set -- "$@" --set "profile.file=$out/${config##*/}"
    ranks=
    if grep -q '^launcher:.*mpi' "$config"; then
        ranks=$(sed -n 's/^ranks: *//p' "$config")
        if [ -n "$no_mpi" ]; then
            echo "SKIP: ${config##*/}: $no_mpi"
            skipped=$((skipped + 1))
            continue
        fi
    fi
    # A config without a routing file of its own gets that one.
    ! grep 'kind: file' "$config" | grep -qv 'path:' || set -- "$@" --set "routing.path=$out/routes.jsonl"
    "$epa2a" config check --quiet "$config" "$@" 2>"$out/why"
    checked=$?
    # Some of many runs may need a plugin that was not built: verify skips them.
    [ $checked = 3 ] && grep -q '^matrix:' "$config" && checked=0
    # A plugin may need a library that is not installed, also between nodes or in a base file.
    if [ $checked = 3 ] && grep -q 'is not part of this build: building it needs' "$out/why"; then
        echo "SKIP: $(cat "$out/why")"
        skipped=$((skipped + 1))
    elif [ $checked != 0 ] && [ -n "$no_api" ] && grep -qE "$no_api" "$out/why"; then
        echo "SKIP: $(cat "$out/why")"
        skipped=$((skipped + 1))
    elif [ $checked != 0 ]; then
        echo "FAILED: ${config##*/}: $(cat "$out/why")"
        failed=$((failed + 1))
    elif [ "$kind" = cuda ] && [ ! -e /dev/nvidiactl ]; then
        skipped=$((skipped + 1))
    elif verify "$config" "$@" 2>"$out/why"; then
        if grep -q '^profile:' "$config"; then
            python3 "${0%/*}/../trace/check.py" "$out/${config##*/}.json" || failed=$((failed + 1))
        fi
        echo "ok: ${config##*/}"
        ran=$((ran + 1))
    elif grep -qE "$lacks" "$out/why"; then
        echo "SKIP: $(cat "$out/why")"
        skipped=$((skipped + 1))
    else
        echo "FAILED: ${config##*/}: $(cat "$out/why")"
        failed=$((failed + 1))
    fi
done
echo "$ran verified, $skipped skipped, $failed failed"
[ -e /dev/nvidiactl ] || [ "$kind" != cuda ] || echo "SKIP: this machine has no GPU of NVIDIA"
[ $((ran + skipped + failed)) != 0 ] || exit 99
[ $failed = 0 ] || exit 1
[ $ran != 0 ] || exit 77
