#!/bin/bash
# The fused layer on the GPUs of this host: all switches of configs/fused-ablation-nvlink.yaml are
# verified on a small shape, then measured with L2 written over before each call, beside ll_v2 with
# the experts' GEMMs, in one run for each number of tokens. Medians in us last, one table.
#   fused_gpu.sh EPA2A RANKS [TOKENS...] [-- SETTING|--OPTION=VALUE...]
# TOKENS: 8 128 1024 4096. 64 experts a rank, if no SETTING says other. Most of the time is set-up:
# where it is short, '--only=ll_v2' '--only=default' '--only=one launch'. $OUT: a folder that keeps
# reports; $VERIFY=no leaves that part out.
set -u
usage='fused_gpu.sh EPA2A RANKS [TOKENS...] [-- SETTING|--OPTION=VALUE...]'
epa2a=${1:?$usage} ranks=${2:?$usage}
shift 2
tokens=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do tokens+=("$1"); shift; done
[ $# -gt 0 ] && shift
[ ${#tokens[@]} -gt 0 ] || tokens=(8 128 1024 4096)
config=$(cd "$(dirname "$0")/../.." && pwd)/configs/fused-ablation-nvlink.yaml
if [ -n "${OUT:-}" ]; then
    work=$OUT
    mkdir -p "$work" || exit 1
else
    work=$(mktemp -d) || exit 1
    trap 'rm -rf "$work"' EXIT
fi
set=(--set "ranks=$ranks" --set "moe.experts=$((64 * ranks))")
for s in "$@"; do
    case $s in
        --*=*) set+=("${s%%=*}" "${s#*=}") ;;
        *) set+=(--set "$s") ;;
    esac
done

if [ "${VERIFY:-yes}" = yes ]; then
    # Tokens that a block sends together; one after the other; by expert, in tiles of 128 rows.
    for shape in 'moe.max_tokens=37' 'moe.max_tokens=300 moe.topk=4' 'moe.max_tokens=2000'; do
        small=(--set moe.hidden=1024 --set expert.ffn=512 --set expert.values=integers)
        for s in $shape; do small+=(--set "$s"); done
        echo "# $SECONDS s: verify, $shape"
        "$epa2a" verify "$config" "${set[@]}" "${small[@]}" >"$work/verify.txt" 2>&1 || {
            tail -n 40 "$work/verify.txt"
            echo "fused_gpu.sh: verify failed" >&2
            exit 1
        }
        grep -h ' compared, ' "$work/verify.txt" | sort | uniq -c | head -n 3
    done
fi
for t in "${tokens[@]}"; do
    echo "# $SECONDS s: $t tokens a rank"
    "$epa2a" bench "$config" "${set[@]}" --set "moe.max_tokens=$t" --json "$work/$t.json" --force \
        >"$work/$t.txt" 2>&1 || {
        echo "fused_gpu.sh: $t tokens: exit code $?" >&2
        tail -n 20 "$work/$t.txt"
    }
done
python3 - "$work" "${tokens[@]}" <<'PYTHON'
import json
import sys

work, *tokens = sys.argv[1:]
column, names = {}, []
for t in tokens:
    try:
        results = json.load(open(f"{work}/{t}.json", encoding="utf-8"))["results"]
    except (OSError, ValueError, KeyError):
        continue
    for r in results:
        name = r.get("label") or r["name"]
        if name not in names:
            names.append(name)
        if r.get("stages"):
            column[name, t] = r["stages"][-1]["ns"]["median"] / 1000
width = max(map(len, names), default=0)
print(f"\n{'median us, L2 cold; tokens':{width}}" + "".join(f"{t:>10}" for t in tokens))
for name in names:
    cells = (column.get((name, t)) for t in tokens)
    print(f"{name:{max(width, 26)}}" + "".join(f"{c:10.1f}" if c else f"{'-':>10}" for c in cells))
PYTHON
