#!/bin/bash
# Between hosts that are namespaces of this one, over UCX's tcp and a link of so many Mbit/s each way:
# a layer by fused, and by ll_v2 with the experts between, taking turns. Least medians over rounds, in ms,
# and of fused what is hidden: (dispatch and combine alone + GEMMs alone - layer) / the shorter.
#   fused_hosts.sh EPA2A MBIT [ROUNDS [PLACES [SETTING...]]]   PLACES: "host1 host2", the host of each rank
. "$(dirname "$0")/../hosts/hosts.sh"
[ $# -ge 2 ] || { echo "usage: $0 EPA2A MBIT [ROUNDS [PLACES [SETTING...]]]" >&2; exit 2; }
enter "$@"
set -u
epa2a=$1 mbit=$2 rounds=${3:-3} places=${4:-host1 host2}
needs "$epa2a" env ucx
hosts=$(tr ' ' '\n' <<<"$places" | sort -u)
hosts_up "$(wc -w <<<"$hosts")" none
for host in $hosts; do
    shape=(root tbf rate "${mbit}mbit" burst 256kb latency 100ms)
    tc qdisc add dev "to_$host" "${shape[@]}" && on "$host" tc qdisc add dev eth0 "${shape[@]}" || exit 1
done
shift $(($# < 4 ? $# : 4))
config=$(cd "$(dirname "$0")/../.." && pwd)/configs/fused-shm.yaml
export UCX_NET_DEVICES=eth0 UCX_TLS=tcp,self

# NAME|SETTINGS
ways=(
    "fused|"
    "ll_v2, by rank|algorithm.name=ll_v2 algorithm.dispatch_dtype=native algorithm.layout=rank"
    "ll_v2, dedup|algorithm.name=ll_v2 algorithm.dispatch_dtype=native algorithm.dedup=true"
)

# Medians of dispatch, experts, combine and total, and of the halves of fused; - where there is none.
once() {
    local set=(--set transport=ucx --set transport.tls=tcp,self --set "ranks=$(wc -w <<<"$places")") s
    for s in "$@"; do set+=(--set "$s"); done
    start env "$places" "$epa2a" bench "$config" --set bench.iterations=20 --json "$work/json" --force "${set[@]}"
    finish
    [ -z "$(tr -d '0 ' <<<"$codes")" ] || { tail -n 5 "$work"/err.* >&2; return 1; }
    python3 - "$work/json" <<'END'
import json, sys
result = json.load(open(sys.argv[1]))["results"][0]
row = {s["name"]: s["ns"]["median"] / 1e6 for s in result["stages"]}
part = [p["median_ns"] / 1e6 for p in result["compute"]["parts"]]
print(*[row.get(n, "-") for n in ("dispatch", "experts", "combine", "total")], *(part or "--"))
END
}

for ((round = 0; round < rounds; round++)); do
    for i in "${!ways[@]}"; do
        IFS='|' read -r _ settings <<<"${ways[i]}"
        # shellcheck disable=SC2086
        once ${settings-} "$@" >>"$work/way.$i" || exit 1
    done
done

printf '%-18s %9s %9s %9s %9s %9s %9s %7s\n' "$mbit Mbit/s" dispatch experts combine total moving gemms hidden
for i in "${!ways[@]}"; do
    IFS='|' read -r name _ <<<"${ways[i]}"
    printf '%-18s' "$name"
    awk '{ for (c = 1; c <= 6; c++) if ($c != "-" && (!has[c] || $c + 0 < least[c])) { has[c] = 1; least[c] = $c + 0 } }
        END {
            for (c = 1; c <= 6; c++) if (has[c]) printf " %9.2f", least[c]; else printf "         -"
            if (has[5]) printf " %5.0f %%", 100 * (least[5] + least[6] - least[4]) / (least[5] < least[6] ? least[5] : least[6])
            print ""
        }' "$work/way.$i"
done
