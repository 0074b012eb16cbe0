#!/bin/bash
# Ranks that are killed, stopped or interrupted in the middle of a run: exit codes, time limits and
# messages. No process or file may remain.
#   ranks.sh EPA2A CONFIG KIND      KIND: kill | stop | int | ignored | term | hup | alone | parent | setup
# All limits grow with the time that this machine takes for one iteration from start to end, which
# is seconds on GPUs. Exit code 77: CONFIG needs GPUs and there are none.
set -u
# A command that starts with SIGHUP ignored, as by nohup, keeps ignoring it.
[ "$3" != hup ] || [ -n "${EPA2A_TEST_HUP-}" ] || EPA2A_TEST_HUP=1 exec env --default-signal=HUP "$BASH" "$0" "$@"
epa2a=$1 config=$2 kind=$3
work=$(mktemp -d) || exit 1
trap 'rm -rf "$work"' EXIT
# Excludes files of GPU drivers, which may remain after a rank is killed, and files of CUDA, MPI
# and UCX from runs beside this one. epa2a itself creates no names there.
in_shm() { ls /dev/shm 2>/dev/null | grep -vE '^(cuda\.shm\.|vader_|osc_|open_mpi|ucx_shm_)' | sort; }
shm_before=$(in_shm)
. "$(dirname "$0")/late.sh"

fail() {
    echo "FAIL: $*"
    sed 's/^/    /' "$work/err"
    failed=1
}

# A shell ignores SIGINT in its background jobs, and epa2a leaves an ignored SIGINT alone.
interruptible() { exec env --default-signal=INT "$epa2a" "$@"; }

uses_cuda() { "$epa2a" config show "$config" | grep -q '^  name: cuda$'; }

# passes: runs one iteration and sets whole_ms.
passes() {
    local begin code
    begin=$(now_ms)
    "$epa2a" bench "$config" --set timeout=100s --set bench.iterations=1 --set bench.warmup=0 >"$work/out" 2>"$work/err"
    code=$?
    whole_ms=$(($(now_ms) - begin))
    [ "$1" = first ] && [ "$code" = 3 ] && grep 'error: .*cuda: ' "$work/err" && exit 77
    [ "$code" = 0 ] || fail "one iteration, $1: exit code $code, not 0"
}

# start VERB ARGS: starts an endless command; sets pid and, as soon as all ranks exist, ranks.
start() {
    local command=interruptible
    [ "$kind" != ignored ] || command=$epa2a
    rm -f "$work/out.json"
    "$command" "$1" "$config" --set timeout=200s "${@:2}" --set bench.iterations=1000000 --set bench.warmup=0 \
        --set verify.iterations=1000000 --json "$work/out.json" >"$work/out" 2>"$work/err" &
    pid=$!
    for _ in $(seq 4000); do
        find_children "$pid"
        ranks=$children_of
        set -- $ranks
        [ $# -ge 4 ] && return 0
        rest 0.005
    done
    fail "the ranks never came"
    return 1
}

victim() { set -- $ranks; eval "echo \${$((RANDOM % $# + 1))}"; }

any_is_left() {
    for r in $ranks; do runs "$r" && return 0; done
    return 1
}

# new_in_shm: lists files in /dev/shm that did not exist before the test.
new_in_shm() { comm -13 <(echo "$shm_before") <(in_shm); }

# nothing_left: checks that the test leaves no file in /dev/shm. Other programs may have files there
# for a moment, such as the semaphores of Python.
nothing_left() {
    local begun left
    begun=$(now_ms)
    left=$(new_in_shm)
    while [ -n "$left" ] && [ $(($(now_ms) - begun)) -le "$late_ms" ]; do
        rest 0.05
        left=$(new_in_shm)
    done
    [ -z "$left" ] || fail "left in /dev/shm:" $left
}

# finish WANT_CODE LIMIT_MS: waits for the end after the fault at $since
finish() {
    wait "$pid"
    local code=$? ms=$(($(now_ms) - since)) limit=$(($2 + whole_ms))
    [ "$code" = "$1" ] || fail "exit code $code, not $1"
    in_time "$ms" "$limit"
    for r in $ranks; do
        runs "$r" && fail "process $r is left behind"
    done
    nothing_left
    last_ms=$ms
}

# iterates PID: true if a rank of the command has finished an iteration
iterates() { "$epa2a" status "$1" --json - 2>/dev/null | grep -Eq '"iteration": *[1-9]'; }

json_is_valid() {
    command -v python3 >/dev/null || return 0
    python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$work/out.json" ||
        fail "the JSON is not valid"
}

# nap [MORE_MS]: waits until iterations run, and a while longer.
nap() {
    local ms=$((whole_ms + 50 + RANDOM % 200 + ${1:-0}))
    sleep "$((ms / 1000)).$(printf %03d $((ms % 1000)))"
}

# saw_each_stage STAGES: true if ranks were lost in dispatch and combine (or the only stage) and
# outside stages.
saw_each_stage() {
    case $1 in *";between stages;"* | *";inputs;"* | *";check;"*) ;; *) return 1 ;; esac
    case $1 in *";layer;"* | *";ag_gemm;"*) return 0 ;; esac
    case $1 in *";dispatch;"* | *";dispatch_recv;"*) ;; *) return 1 ;; esac
    case $1 in *";combine;"* | *";combine_recv;"*) return 0 ;; *) return 1 ;; esac
}

# Repeats until a rank has been lost in each stage, at most 120 times.
kill_in_each_stage() {
    local seen="" slowest=0 # seen: each followed by ';', for one's name may be part of another's
    for i in $(seq 120); do
        # verify spends the time between stages on inputs and checks, which dominate if rows are
        # wide and many; bench does not.
        if [ $((i % 2)) = 0 ]; then
            start verify --set moe.hidden=4096 --set tokens=full || return
        elif [ $((i % 4)) = 1 ] && uses_cuda; then
            start bench --set bench.clock=events || return # in graphs no stage is by itself
        else
            start bench || return
        fi
        nap
        since=$(now_ms)
        kill -KILL "$(victim)"
        finish 5 6000
        [ "$last_ms" -gt "$slowest" ] && slowest=$last_ms
        stage=$(sed -n 's/.*was killed by signal 9 (Killed): \([a-z_ -]*\), iteration .*/\1/p' "$work/err")
        [ -n "$stage" ] || fail "the message names no stage"
        case ";$seen" in *";$stage;"*) ;; *) seen="$seen$stage;" ;; esac
        json_is_valid
        [ "$failed" = 0 ] || return
        if saw_each_stage ";$seen"; then
            echo "killed in: ${seen%;}; slowest end $slowest ms"
            return
        fi
    done
    fail "killed in $seen only"
}

meet_their_end() {
    case $kind in
    kill) kill_in_each_stage ;;
    setup)
        for _ in $(seq $((whole_ms < 1000 ? 10 : 3))); do
            start bench || break
            since=$(now_ms)
            kill -KILL "$(victim)"
            finish 5 6000
        done ;;
    stop)
        start bench --set "timeout=$((limit_ms + whole_ms))ms" || return
        nap
        since=$(now_ms)
        # Kills two ranks: the first, and another one.
        set -- $ranks
        who="$1 $(eval "echo \${$((RANDOM % ($# - 1) + 2))}")"
        # Ranks without a core for so long time out on each other.
        if ! kill -STOP $who 2>/dev/null || ! runs "$pid"; then
            late="it ended before a rank was stopped, by a timeout of $limit_ms ms"
            limit_ms=$((4 * limit_ms))
            wait "$pid"
            return
        fi
        # Stopped ranks cannot leave: they are killed after their grace period, which is longer
        # with a device.
        uses_cuda && finish 4 $((14500 + limit_ms)) || finish 4 $((4500 + limit_ms))
        late_by_itself "$work/err" && return
        grep -Eq 'rank [0-9]+[,:] .*(of|for) rank [0-9]+' "$work/err" || fail "nobody says whom it waited for"
        for r in $who; do
            grep -Eq "; rank [^;]*\\(pid $r\\)[^;]* did not stop after the request" "$work/err" || fail "nobody names process $r"
        done
        json_is_valid ;;
    int | term | hup)
        [ "$kind" = int ] && code=130 || code=143
        # On a busy machine there may be no samples by then: a later interruption checks the
        # partial result.
        for more_ms in 0 250 500 1000 2000 4000 8000; do
            start bench || return
            nap "$more_ms"
            since=$(now_ms)
            kill "-${kind^^}" "$pid"
            finish "$code" 3000
            grep -q '"status": "interrupted"' "$work/out.json" ||
                fail "the JSON does not say that it was interrupted"
            json_is_valid
            grep -q 'there is no sample' "$work/err" || break
        done
        grep -q '"samples_ns": \[$' "$work/out.json" || grep -q '"samples_ns": \[[0-9 ]' "$work/out.json" ||
            fail "what was measured is lost" ;;
    ignored) # the kernel keeps no signal for a stopped process that ignores it
        start bench || return
        kill -STOP "$pid"
        kill -INT "$pid"
        [ $((0x$(sed -n 's/^ShdPnd:[[:space:]]*//p' "/proc/$pid/status") & 2)) = 0 ] || fail "SIGINT is not ignored"
        kill -TERM "$pid"
        since=$(now_ms)
        kill -CONT "$pid"
        finish 143 3000
        json_is_valid ;;
    alone) # a rank that waits for nobody hears of it, too, and is not given up after its grace
        ranks= soonest=$late_ms
        for _ in 1 2 3; do
            interruptible bench "$config" --set ranks=1 --set launcher=thread --set bench.warmup=0 \
                --set bench.iterations=1000000 --json "$work/out.json" --force \
                >"$work/out" 2>"$work/err" &
            pid=$!
            until iterates "$pid" || ! runs "$pid"; do rest 0.01; done
            since=$(now_ms)
            kill -INT "$pid"
            finish 130 "$late_ms"
            json_is_valid
            [ "$last_ms" -lt "$soonest" ] && soonest=$last_ms
        done
        in_time "$soonest" 1000 ;;
    parent)
        start bench || return
        nap
        since=$(now_ms)
        kill -KILL "$pid"
        while any_is_left && [ $(($(now_ms) - since)) -lt "$late_ms" ]; do rest 0.1; done
        finish 137 3000 ;;
    esac
}

limit_ms=500 # of a wait for a rank that was stopped
passes first
until_in_time meet_their_end
[ "$failed" = 0 ] && passes afterwards
exit "$failed"
