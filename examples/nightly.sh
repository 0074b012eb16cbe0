#!/bin/sh
# A nightly benchmark with a trend, for cron:
#
#   nightly.sh FOLDER EXPERIMENT [OPTION...]      such as: nightly.sh ~/nights ll_v2-shm --model glm-4.5
#
# FOLDER keeps one JSON line for each run in history.jsonl and one line for each night and run in
# trend.tsv. Each night is compared with the NIGHTS nights before it (default 7). A night that is
# slower ends with exit code 10 and is kept, too. A night whose benchmark fails is not kept, and its
# exit code is the benchmark's. EPA2A names the program, REPEAT the runs of a night: `epa2a compare`
# needs at least 5 on each side.
set -u
folder=${1:?FOLDER} experiment=${2:?EXPERIMENT}
shift 2
epa2a=${EPA2A:-epa2a} nights=${NIGHTS:-7} repeat=${REPEAT:-5}
mkdir -p "$folder" || exit 3
exec 9>"$folder/lock"
if command -v flock >/dev/null && ! flock -n 9; then
    echo "nightly: another night still runs in $folder" >&2
    exit 3
fi
tonight=$(mktemp -d "$folder/tonight.XXXXXX") || exit 3
trap 'rm -rf "$tonight"' EXIT
touch "$folder/history.jsonl" "$folder/trend.tsv"

"$epa2a" bench "$experiment" --set repeat="$repeat" "$@" --quiet --json-lines "$tonight/runs.jsonl" \
    --csv "$tonight/runs.csv" || exit

# The nights before this one, by their number of lines in history.jsonl.
runs=$(wc -l <"$tonight/runs.jsonl")
tail -n $((nights * runs)) "$folder/history.jsonl" >"$tonight/before.jsonl"
code=0
if [ -s "$tonight/before.jsonl" ]; then
    echo "== tonight against the last nights"
    "$epa2a" compare "$tonight/before.jsonl" "$tonight/runs.jsonl" || code=$?
    case $code in
    0 | 10) ;;
    *)
        echo "nightly: tonight cannot be compared with $folder/history.jsonl: move that file away if" \
            "the experiment or the machine has changed" >&2
        exit $code
        ;;
    esac
fi
cat "$tonight/runs.jsonl" >>"$folder/history.jsonl"

# Median of the repetitions of each run: night, label, total in us.
date=$(date +%Y-%m-%dT%H:%M)
awk -v date="$date" '
    function cell(line, n,    i, field) {      # cell n of a line of CSV
        for (i = 1; i <= n; i++) {
            if (substr(line, 1, 1) == "\"") {
                match(line, /^"([^"]|"")*"/)
                field = substr(line, 2, RLENGTH - 2)
                line = substr(line, RLENGTH + 2)
            } else {
                match(line, /^[^,]*/)
                field = substr(line, 1, RLENGTH)
                line = substr(line, RLENGTH + 2)
            }
        }
        return field
    }
    NR == 1 {
        n = split($0, name, ",")
        for (i = 1; i <= n; i++) {
            if (name[i] == "label") label = i
            if (name[i] == "total_us") total = i
        }
        next
    }
    {
        run = cell($0, label)
        sub(/ ?#[0-9]+$/, "", run)
        if (run == "") run = "total"
        if (!(run in count)) order[++runs] = run
        value[run, ++count[run]] = cell($0, total) + 0
    }
    END {
        for (r = 1; r <= runs; r++) {
            run = order[r]
            for (i = 2; i <= count[run]; i++)      # insertion sort
                for (k = i; k > 1 && value[run, k - 1] > value[run, k]; k--) {
                    swap = value[run, k]; value[run, k] = value[run, k - 1]; value[run, k - 1] = swap
                }
            printf "%s\t%s\t%.3f\n", date, run, value[run, int((count[run] + 1) / 2)]
        }
    }' "$tonight/runs.csv" >>"$folder/trend.tsv"

echo "== trend: median of total, over the first night of each run"
awk -F '\t' -v most="$nights" '
    !($2 in first) { first[$2] = $3; order[++n] = $2 }
    { line[$2, ++count[$2]] = sprintf("  %-16s %12.2f us %8.3f", $1, $3, $3 / first[$2]) }
    END {
        for (r = 1; r <= n; r++) {
            print order[r]
            from = count[order[r]] - most > 0 ? count[order[r]] - most : 1
            for (i = from; i <= count[order[r]]; i++) print line[order[r], i]
        }
    }' "$folder/trend.tsv"
exit $code
