#!/bin/sh
# configs.sh EPA2A FOLDER host|cuda: every experiment of the folder with that backend (host: any
# other than cuda) is read and verified, as it stands but for the number of iterations. Where none
# can run, 77 and why; a reason that is no lack of this machine fails.
set -u
epa2a=$1 folder=$2 kind=$3
out=$(mktemp -d) || exit 99
trap 'rm -rf "$out"' EXIT
lacks='no NVIDIA driver|there is a driver, but no GPU|the NVIDIA driver is for CUDA'
lacks="$lacks|ranks on this node and [0-9]+ GPU|has compute capability|but .* is available"
ran=0 skipped=0 failed=0

# A routing file in which tokens t and t + 1 have no expert in common.
awk 'BEGIN { for (t = 0; t < 512; t++) { printf "{\"topk_ids\": [";
    for (k = 0; k < 8; k++) printf "%s%d", k ? ", " : "", (t * 8 + k) % 64;
    print "], \"topk_weights\": [0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.05, 0.05]}" } }' >"$out/routes.jsonl"

if [ "$kind" = cuda ] && ! "$epa2a" list backend | grep -q '^  cuda '; then
    echo "SKIP: built without the plugins for GPUs"
    exit 77
fi
for config in "$folder"/*.yaml; do
    if grep -q '^backend:.*cuda' "$config"; then is=cuda; else is=host; fi
    [ $is = "$kind" ] || continue
    set -- --set verify.iterations=2
    grep -q 'kind: file' "$config" && set -- "$@" --set "routing.path=$out/routes.jsonl"
    if ! "$epa2a" config check --quiet "$config" "$@" 2>"$out/why"; then
        cat "$out/why"
        failed=$((failed + 1))
    elif "$epa2a" verify --quiet "$config" "$@" 2>"$out/why"; then
        echo "ok: ${config##*/}"
        ran=$((ran + 1))
    elif grep -qE "$lacks" "$out/why"; then
        echo "SKIP: $(cat "$out/why")"
        skipped=$((skipped + 1))
    else
        cat "$out/why"
        failed=$((failed + 1))
    fi
done
echo "$ran verified, $skipped skipped, $failed failed"
[ $((ran + skipped + failed)) != 0 ] || exit 99
[ $failed = 0 ] || exit 1
[ $ran != 0 ] || exit 77
