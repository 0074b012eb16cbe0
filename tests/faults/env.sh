#!/bin/bash
# Ranks started one by one on this host, as torchrun and srun do. If a rank fails in any way, all
# ranks must end with one status, in time, with the right messages, and leave no process or file.
#   env.sh EPA2A CONFIG KIND [UNPACK]
#   KIND: well | few | kill | crash | stop | rendezvous | never | other | token | int | term | garbage | several | silent | pause | keys |
#         blame
set -u
epa2a=$1 config=$2 kind=$3 unpack=${4-} n=4
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/late.sh"
# Variables of a job that runs this test.
unset "${!SLURM_@}" "${!OMPI_@}" "${!PMI_@}" "${!PMIX_@}" "${!TORCHELASTIC_@}" EPA2A_JOB_TOKEN
# With a token ranks meet by TCP, without one at a local socket.
case $kind in well | few | several) ;; *) export EPA2A_JOB_TOKEN=token.of.one.test.$RANDOM$RANDOM$RANDOM ;; esac

fail() {
    echo "FAIL: $*"
    for r in $(seq 0 $((n - 1))); do
        sed "s/^/    $r| /" "$work/err.$r" 2>/dev/null
    done
    failed=1
}

# Sanitizers report a crash themselves and end the process; here the program handles the signal.
export ASAN_OPTIONS=${ASAN_OPTIONS-}:handle_segv=0 TSAN_OPTIONS=${TSAN_OPTIONS-}:handle_segv=0

# Below the ports that the kernel chooses. Other tests at the same time have other numbers.
port=$((20000 + $$ % 10000))

# rank R ARGS: starts a rank and sets pid[R]. The shell ignores SIGINT in its background jobs, and
# epa2a leaves an ignored SIGINT alone, so env restores the default.
declare -a pid=()
rank() {
    local r=$1
    shift
    RANK=$r WORLD_SIZE=$n LOCAL_RANK=$r LOCAL_WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 \
        MASTER_PORT=$port env --default-signal=INT "$epa2a" "$@" --set ranks=$n --set launcher.name=env \
        >"$work/out.$r" 2>"$work/err.$r" &
    pid[$r]=$!
}

endless=(bench "$config" --set timeout=200s --set bench.iterations=1000000 --set bench.warmup=0)

# some RANKS ARGS: starts these ranks
some() {
    local r
    for r in $1; do rank "$r" "${@:2}"; done
    since=$(now_ms)
}

start_all() { some "$(seq 0 $((n - 1)))" "$@"; }

iterates() { "$epa2a" status "${pid[$1]}" --json - 2>/dev/null | grep -Ec '"iteration": *[1-9]' >/dev/null; }

# Waits until all ranks iterate and a while longer, or until one has ended.
underway() {
    for r in $(seq 0 $((n - 1))); do
        until iterates "$r" || ! kill -0 "${pid[$r]}" 2>/dev/null; do rest 0.01; done
        find_children "${pid[$r]}"
        [ -z "$children_of" ] || fail "rank $r has a second process: $children_of"
    done
    sleep "0.$((RANDOM % 4))"
}

# go_on ARGS: starts an endless run and waits until it iterates
go_on() {
    start_all "${endless[@]}" "$@"
    underway
    since=$(now_ms)
}

# ends WANT_CODE LIMIT_MS [RANKS]: waits for their end after the fault at $since.
ends() {
    local code ms
    for r in ${3:-$(seq 0 $((n - 1)))}; do
        wait "${pid[$r]}"
        code=$?
        [ "$code" = "$1" ] || fail "rank $r: exit code $code, not $1"
    done
    ms=$(($(now_ms) - since))
    in_time "$ms" "$2"
}

# connections STATE QUEUE: number of rank 0's connections to others in this state of /proc/net/tcp
# whose unread bytes match QUEUE
connections() {
    awk -v port=":$(printf %04X "$port")" -v state="$1" -v queue="$2" \
        'index($2, port) == length($2) - 4 && $4 == state && substr($5, 10) ~ queue { n++ } END { print n + 0 }' \
        /proc/net/tcp /proc/net/tcp6
}

# awaits COMMAND...: waits until the command succeeds, at most about 20 s
awaits() {
    for _ in $(seq 2000); do
        "$@" && return
        rest 0.01
    done
    fail "in vain: $*"
}

# stopped PID: true if all threads of the process are stopped
stopped() { ! sed -n 's/^State:[[:space:]]*//p' "/proc/$1/task"/*/status | grep -qv '^T'; }

# asked N: rank 0's process has not read the end of one rank and the requests of N ranks to stop
asked() { [ "$(connections 08 .)" = 1 ] && [ "$(connections 01 '[1-9A-F]')" = "$1" ]; }

# others_end VICTIM WANT_CODE LIMIT_MS: rank VICTIM has ended by SIGKILL, and the others end.
others_end() {
    ends "$2" "$3" "$(seq 0 $((n - 1)) | grep -v "$1")"
    ends 137 "$3" "$1"
}

says() { grep -Eq -e "$2" "$work/err.$1" || fail "rank $1 does not say: $2"; }

# Ranks that do not report print no table, and only lines of their own or of UCX.
others_are_quiet() {
    for r in $(seq 1 $((n - 1))); do
        [ -s "$work/out.$r" ] && fail "rank $r prints a table"
        grep -Ev "^(\[rank $r\]|UCX [A-Z]+:) " "$work/err.$r" && fail "rank $r prints a line that is not its own"
    done
}

well() {
    start_all verify "$config"
    ends 0 60000
    grep -q ' compared, 0 wrong$' "$work/out.0" || fail "rank 0 reports nothing"
    others_are_quiet
    start_all bench "$config" --set bench.iterations=7 --json "$work/out.json"
    ends 0 60000
    command -v python3 >/dev/null || return
    python3 - "$work/out.json" $n <<'PYTHON' || fail "the JSON is not complete"
import json, sys
result = json.load(open(sys.argv[1]))["results"][0]
total = result["stages"][-1]
assert len(total["samples_ns"]) == 7, total["samples_ns"]
assert len(total["ranks"]) == int(sys.argv[2]), total["ranks"]
assert all(rank["median_ns"] > 0 for rank in total["ranks"]), total["ranks"]
PYTHON
}

# Messages of waits for a stopped rank, for a missing rank, and for a silent launcher.
limit_ms=500 start_s=2 heart_s=1 silent_s=2

# others_came WORDS: rank 0 says this. On a busy machine other ranks may be late, too: the test
# repeats with a longer limit.
others_came() {
    if ! grep -Eq -e "$1" "$work/err.0" && grep -q 'did not connect within' "$work/err.0"; then
        late="others did not connect within $start_s s"
        start_s=$((4 * start_s))
        return 1
    fi
    says 0 "$1"
}

# keeps LOST [RANK]: the result of RANK, by default 0, is partial, has samples, and lacks only the times of
# ranks LOST ("[2]")
keeps() {
    grep -q '^# partial: it ended after [0-9,]* samples' "$work/out.${2-0}" || fail "the table is not marked as partial"
    command -v python3 >/dev/null || return
    python3 - "$work/out.json" "$1" <<'PYTHON' || fail "the JSON does not keep the samples"
import json, sys
result, lost = json.load(open(sys.argv[1]))["results"][0], json.loads(sys.argv[2])
partial, total = result["partial"], result["stages"][-1]
assert result["status"] == "died" and partial["lost_ranks"] == lost, (result["status"], partial)
assert partial["samples"] == len(total["samples_ns"]) > 0 and min(total["samples_ns"]) > 0, partial
assert [r["rank"] for r in total["ranks"] if r["median_ns"] is None] == lost, total["ranks"]
PYTHON
}

meet_their_end() {
    case $kind in
    well) well ;;
    few) # variables: no LOCAL_RANK, no LOCAL_WORLD_SIZE, and no launcher is asked for
        for r in $(seq 0 $((n - 1))); do
            RANK=$r WORLD_SIZE=$n MASTER_ADDR=127.0.0.1 MASTER_PORT=$port "$epa2a" verify "$config" \
                --set ranks=$n >"$work/out.$r" 2>"$work/err.$r" &
            pid[$r]=$!
        done
        since=$(now_ms)
        ends 0 60000
        grep -q ' compared, 0 wrong$' "$work/out.0" || fail "rank 0 reports nothing"
        says 0 "launcher: env \\(environment: RANK=0 of WORLD_SIZE=$n\\)"
        others_are_quiet ;;
    kill)
        for victim in 1 3; do
            go_on --json "$work/out.json" --force
            kill -KILL "${pid[$victim]}"
            others_end $victim 5 5000
            keeps '[]'
            says 0 "rank $victim \\(host .*, pid ${pid[$victim]}[^)]*\\) was killed by signal 9 \\(Killed\\): .*, iteration [0-9]+"
            others_are_quiet
        done ;;
    blame) # as mpirun does after the death of a rank: SIGTERM to the others, and SIGKILL a second later
        # Rank 0 waits for a core meanwhile, and reads the death and the requests to stop at once.
        for victim in 1 2 3; do
            go_on --set launcher.heartbeat=60s
            kill -STOP "${pid[0]}"
            awaits stopped "${pid[0]}"
            kill -KILL "${pid[$victim]}"
            for r in 1 2 3; do [ $r = $victim ] || kill -TERM "${pid[$r]}"; done
            awaits asked 2
            kill -CONT "${pid[0]}"
            others_end $victim 5 8000
            says 0 "rank $victim \\(host .*, pid ${pid[$victim]}[^)]*\\) was killed by signal 9 \\(Killed\\)"
            others_are_quiet
        done
        # Rank 2 cannot end, so SIGKILL precedes the report.
        go_on --set launcher.heartbeat=60s
        kill -STOP "${pid[2]}"
        kill -KILL "${pid[3]}"
        wait "${pid[3]}" # all of its threads have ended
        kill -TERM "${pid[0]}"
        awaits grep -q '^warning: rank 3 (.*) was killed by signal 9 (Killed)' "$work/err.0"
        kill -KILL "${pid[@]:0:3}"
        wait "${pid[@]:0:3}" ;;
    crash)
        for victim in 0 1 3; do
            go_on --json "$work/out.json" --force
            kill -SEGV "${pid[$victim]}"
            ends 5 5000
            keeps '[]'
            says 0 "rank $victim \\(host .*, pid ${pid[$victim]}\\) was killed by signal 11 \\(Segmentation fault\\): .*, iteration [0-9]+"
            others_are_quiet
        done ;;
    stop)
        go_on --set "timeout=${limit_ms}ms"
        # Ranks without a core for so long time out on each other.
        if ! kill -STOP "${pid[3]}" 2>/dev/null || ! kill -0 "${pid[@]}" 2>/dev/null; then
            late="it ended before a rank was stopped, by a timeout of $limit_ms ms"
            limit_ms=$((4 * limit_ms))
            wait "${pid[@]}"
            return
        fi
        ends 4 $((9500 + limit_ms)) # the stopped process, too: rank 0 continues it
        late_by_itself "$work/err.0" && return
        says 0 'rank [0-9], .*(of|for) rank 3[ :].*; [^;]*rank 3 \(pid [0-9]+\)[^;]* did not stop after the request'
        others_are_quiet ;;
    keys) # over UCX: a rank dies where others are about to use its key
        UCX_TLS=posix,self LD_PRELOAD=$unpack start_all "${endless[@]}"
        ends 5 5000
        says 0 'rank 3 \(host .*, pid [0-9]+\) was killed by signal 6 \(Aborted\): set-up'
        others_are_quiet ;;
    silent) # as if its host were cut off; a stopped process of the same host is killed
        go_on --set "launcher.heartbeat=${silent_s}s" --json "$work/out.json" --force
        kill -STOP "${pid[2]}"
        wait "${pid[0]}" "${pid[1]}" "${pid[3]}"
        # The others lose a rank without a core for so long.
        if [ "$silent_s" -lt 18 ] && grep -Eq 'rank [013] \([^)]*\) is gone: it sent no message' "$work"/err.*; then
            late="a rank had no core for $silent_s s"
            silent_s=$((3 * silent_s))
            kill -KILL "${pid[2]}"
            wait "${pid[2]}"
            return
        fi
        others_end 2 5 $((6000 + silent_s * 1000))
        keeps '[]'
        says 0 "rank 2 \\(host .*\\) is gone: it sent no message for $silent_s s"
        others_are_quiet ;;
    pause) # all ranks at once, as when their machine sleeps: nobody is lost
        start_all bench "$config" --set timeout=100s --set bench.iterations=4000 --set "launcher.heartbeat=${heart_s}s"
        underway
        since=$(now_ms)
        kill -STOP "${pid[@]}"
        sleep "$((heart_s + 1)).5"
        kill -CONT "${pid[@]}"
        wait "${pid[@]}"
        # The others lose a rank without a core for so long.
        if [ "$heart_s" -lt 9 ] && grep -q 'it sent no message' "$work"/err.*; then
            late="a rank had no core for $heart_s s"
            heart_s=$((3 * heart_s))
            return
        fi
        ends 0 60000 ;;
    rendezvous)
        go_on --json "$work/out.json"
        kill -KILL "${pid[0]}"
        others_end 0 5 5000
        keeps '[]' 1
        says 1 "^\\[rank 1\\] .*rank 0 \\(host .*, pid ${pid[0]}\\) was killed by signal 9 \\(Killed\\): .*, iteration [0-9]+"
        says 3 "^\\[rank 3\\] .*rank 0 \\(host .*, pid ${pid[0]}\\) was killed by signal 9 \\(Killed\\)"
        [ ! -s "$work/out.2" ] && [ ! -s "$work/out.3" ] || fail "two ranks report" ;;
    never)
        some "0 1 3" verify "$config" --set "launcher.start=${start_s}s"
        ends 4 $((9000 + start_s * 1000)) "0 1 3"
        others_came "rank 2 of 4 did not connect within $start_s s" || return
        some "1 2 3" verify "$config" --set launcher.start=1s
        ends 4 10000 "1 2 3"
        says 3 "^\[rank 3\] .*cannot reach rank 0 within 1 s \\(launcher\\.start\\): 127.0.0.1 port $port: Connection refused" ;;
    other)
        some "0 1 2" verify "$config"
        some 3 verify "$config" --set moe.hidden=512
        ends 2 10000
        says 0 'rank 3 \(host .*\) was started with another experiment: moe\.hidden: 512 there, 256 here'
        says 3 '^\[rank 3\] .*moe\.hidden: 512 there, 256 here' ;;
    token)
        some "0 1 2" verify "$config" --set "launcher.start=${start_s}s"
        EPA2A_JOB_TOKEN=guessed.by.a.stranger some 3 verify "$config" --set "launcher.start=${start_s}s"
        wait "${pid[3]}"
        code=$?
        ends 4 $((9000 + start_s * 1000)) "0 1 2"
        others_came "rank 3 of 4 did not connect within $start_s s .*; refused 127\.0\.0\.1: another job" || return
        [ "$code" = 2 ] || fail "rank 3: exit code $code, not 2"
        says 3 '^\[rank 3\] .*another job: this rank.s token differs from rank 0' ;;
    int | term)
        for victim in 0 2; do
            go_on --json "$work/out.json" --force
            kill "-${kind^^}" "${pid[$victim]}"
            ends "$([ "$kind" = int ] && echo 130 || echo 143)" 5000
            grep -q '"status": "interrupted"' "$work/out.json" || fail "the JSON does not say that it was interrupted"
            others_are_quiet
        done ;;
    garbage)
        some "0 1 2" verify "$config"
        for _ in $(seq 4000); do
            (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null && break
            rest 0.005
        done
        for i in $(seq 50); do
            head -c $((i * 37)) /dev/urandom | timeout 1 cat 2>/dev/null 1>"/dev/tcp/127.0.0.1/$port"
        done 2>/dev/null
        printf 'GET / HTTP/1.1\r\n\r\n' 2>/dev/null >"/dev/tcp/127.0.0.1/$port"
        exec 9<>"/dev/tcp/127.0.0.1/$port" # somebody who says nothing
        some 3 verify "$config"
        ends 0 60000
        exec 9>&-
        grep -q ' compared, 0 wrong$' "$work/out.0" || fail "rank 0 reports nothing" ;;
    several) # experiments in one command, of which one is not right
        cp "$config" "$work/a.yaml"
        sed 's/^timeout:.*/timeout: 30s/' "$config" >"$work/b.yaml"
        start_all verify "$work/a.yaml" "$work/b.yaml" "$work/a.yaml"
        ends 0 60000
        [ "$(grep -c ' compared, 0 wrong$' "$work/out.0")" = 3 ] || fail "rank 0 does not report all three"
        start_all verify "$work/a.yaml" "$work/none.yaml"
        ends 2 10000
        others_are_quiet
        [ "$(wc -l <"$work/err.2")" = 1 ] || fail "rank 2 does not say one line" ;;
    *) fail "there is no kind $kind" ;;
    esac
}

until_in_time meet_their_end
exit "$failed"
