#!/bin/bash
# Our transport ucx beside ucx_perftest (package ucx-utils), over the same transports of UCX on this
# host, in turns: puts without a pause, and one there and one back.
#     ucx.sh BENCH-TRANSPORT EPA2A-TRANSPORT-UCX.SO [ROUNDS]
# Prints, for each transport and size, the median over rounds of ours by theirs: of MB/s more is
# better, of us less.
set -u
ours=$1 plugin=$2 rounds=${3:-5}
sizes="8 1024 8192 65536 1048576"
command -v ucx_perftest >/dev/null || { echo "no ucx_perftest here (package ucx-utils)"; exit 77; }
work=$(mktemp -d) || exit 1
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$work"' EXIT
port=$((20000 + RANDOM % 20000))
on() { taskset -c $(($1 % $(nproc))) "${@:2}"; }

# theirs TEST SIZE TURNS FIELD: one figure of its last line
theirs() {
    port=$((port + 1))
    on 0 timeout 60 ucx_perftest -t "$1" -s "$2" -n "$3" -w 200 -p $port >/dev/null 2>"$work/server" &
    server=$!
    for _ in $(seq 50); do
        sleep 0.1
        on 1 timeout 60 ucx_perftest 127.0.0.1 -t "$1" -s "$2" -n "$3" -w 200 -p $port -f -v \
            >"$work/out" 2>"$work/client" && break
    done
    wait $server
    server=
    awk -F, -v field="$4" 'END { print $field }' "$work/out"
}

for tls in posix,self tcp,self; do
    export UCX_TLS=$tls
    for direct in true false; do
        [ "$tls$direct" != tcp,selffalse ] || continue
        for _ in $(seq "$rounds"); do
            for size in $sizes; do
                turns=$((268435456 / size)) && [ $turns -le 20000 ] || turns=20000
                set -- $(timeout 100 "$ours" --plain --sizes $size "$plugin" fork direct=$direct)
                [ $# = 5 ] || { echo "$ours failed"; exit 1; }
                echo "$tls $direct $size $2 $(theirs ucp_put_bw $size $turns 6) $4 $(theirs ucp_put_lat $size 2000 2)"
            done
        done
    done
done >"$work/all"
echo "# ours / ucx_perftest, medians of $rounds rounds; direct: stores of ours, or puts of UCX"
awk '
function median(key, n,    i, j, v, a) {
    for (i = 1; i <= n; i++) a[i] = sample[key, i]
    for (i = 2; i <= n; i++) { v = a[i]; for (j = i - 1; j >= 1 && a[j] > v; j--) a[j + 1] = a[j]; a[j + 1] = v }
    return a[int((n + 1) / 2)]
}
{ key = sprintf("%-10s direct %-5s %8d", $1, $2, $3)
  if (!(key in n)) order[++keys] = key
  i = ++n[key]
  # Theirs are of 2^20 bytes.
  sample[key "bw", i] = $5 > 0 ? $4 / $5 / 1.048576 : 0; sample[key "lat", i] = $7 > 0 ? $6 / $7 : 0
  sample[key "mb", i] = $4; sample[key "us", i] = $6 }
END { for (k = 1; k <= keys; k++) { key = order[k]; i = n[key]
  printf "%s B: put %10.1f MB/s, %.2f of theirs; one way %8.2f us, %.2f of theirs\n", key,
         median(key "mb", i), median(key "bw", i), median(key "us", i), median(key "lat", i) } }' "$work/all"
