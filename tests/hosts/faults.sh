#!/bin/bash
# Faults between hosts: the end of each rank's program, its time, its message, and that no process
# or file is left. tests/faults/env.sh covers faults on one host.
#   faults.sh EPA2A CABLE CONFIG LAUNCH KIND [SETTING ...]     LAUNCH: mpirun | env
#     KIND: kill      a rank in mid-run
#           setup     a rank as soon as all ranks have started
#           cut       the cable of a host is pulled in mid-run
# Limits grow with the time that this machine takes for one iteration from start to end.
set -u
. "$(dirname "$0")/hosts.sh"
enter "$@"
epa2a=$1 cable=$2 config=$3 launch=$4 kind=$5
shift 5
needs "$epa2a" "$launch" ucx
places="host1 host1 host2 host2"
export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0
settings=(--set ranks=4 --set transport=ucx)
on_gpus=$([[ "$*" != *nvlink* ]] || echo yes)
for setting in "$@"; do
    settings+=(--set "$setting")
done
endless=(--set timeout=200s --set bench.iterations=1000000 --set bench.warmup=0 --set verify.iterations=1000000)
# A rank without a core for some seconds is not lost: the end of its connection reveals a killed
# rank.
patient=(--set launcher.heartbeat=30s)
[ "$kind" = cut ] || endless+=("${patient[@]}")

fail() {
    echo "FAIL: $*"
    grep -v '^$' "$work"/err.* | sed "s|^$work/|    |" | tail -n 60
    failed=1
}

# passes WHEN: runs one iteration and sets whole_ms
passes() {
    local begin
    begin=$(now_ms)
    start "$launch" "$places" "$epa2a" bench "$config" "${settings[@]}" \
        --set bench.iterations=1 --set bench.warmup=0 --set timeout=60s "${patient[@]}"
    finish
    whole_ms=$(($(now_ms) - begin))
    [ -z "$(tr -d '0 ' <<<"$codes")" ] || fail "one iteration, $1: exit codes $codes"
    nothing_left
}

# begin_only VERB ARGS: starts an endless command and waits until all ranks exist
begin_only() {
    local i verb=$1
    shift
    start "$launch" "$places" "$epa2a" "$verb" "$config" "${settings[@]}" \
        "${endless[@]}" "$@"
    for i in $(seq 1000); do
        find_processes
        [ ${#ranks[@]} = 4 ] && return
        rest 0.01
    done
    fail "the ranks never came"
}

# begin VERB ARGS: the same, and waits until every rank has finished an iteration. Before, a rank may
# be in MPI_Init, whose only limit is launcher.start.
begin() {
    begin_only "$@"
    for _ in $(seq 1000); do
        if [ "$("$epa2a" status --json - | grep -c '"samples": [1-9]')" = 4 ]; then
            rest "0.$(printf %03d $((RANDOM % 200)))"
            return
        fi
        rest 0.05
    done
    fail "the ranks never iterated"
}

# kill_one "RANK PID" ...: kills one of these at $since; sets rank and pid. The test is late if the
# time limit has ended all ranks for want of a core.
kill_one() {
    read -r rank pid <<<"${*:1 + RANDOM % ($# > 0 ? $# : 1):1}"
    since=$(now_ms)
    if [ -z "$pid" ]; then
        finish
        late="nothing was left to be killed"
        return 1
    fi
    kill -KILL "$pid"
}

# ends WANT LIMIT_MS: waits for the end of every epa2a after the fault at $since, with an exit code
# in WANT
ends() {
    local code limit=$(($2 + 3 * whole_ms))
    finish
    nothing_left
    last_ms=$(($(now_ms) - since))
    in_time "$last_ms" "$limit"
    for code in $codes; do
        case " $1 " in *" $code "*) ;; *) fail "exit codes $codes, not $1" ;; esac
    done
}

says() { grep -Eq "$1" "$work"/err.* || fail "nobody says: $1"; }

# cause: how messages name the death of $rank by SIGKILL: ranks of the first host with the signal.
# mpirun reports the signal of every rank.
cause() {
    local gone="is gone: its connection was closed" killed='was killed by signal 9 \(Killed\)'
    [ "$rank" -ge 2 ] || gone=$killed
    echo "rank $rank \(host host$((rank / 2 + 1)), pid $pid[^)]*\) ($gone|$killed)"
}

# Rank 0 is lost in one of four runs; then the other ranks report.
kill_in_mid_run() {
    local slowest=0 i rank pid tries=8
    [ "$launch" != mpirun ] && [ -z "$on_gpus" ] || tries=3
    for i in $(seq $tries); do
        # verify is between stages most of the time if rows are wide; bench is not.
        if [ $((i % 3)) = 0 ]; then
            begin verify --set moe.hidden=4096 --set tokens=full
        else
            begin bench
        fi
        find_processes
        kill_one "${ranks[@]}" || return
        ends "5 137" 8000
        [ "$last_ms" -gt "$slowest" ] && slowest=$last_ms
        says "$(cause)"
        [ "$failed" = 0 ] || return
    done
    echo "$tries ranks killed; slowest end $slowest ms"
}

# With mpirun the rank may be starting MPI together with the others: the reaction of MPI and mpirun
# is theirs, but all processes must end, and a message must say that a rank was killed or failed.
# With env a process that is killed before it connects is missing after launcher.start. If it is rank
# 0, the other ranks cannot connect. Until all ranks have connected, they know the address of rank 0
# and not its process.
kill_in_set_up() {
    local rank pid start_ms=$((3000 + 4 * whole_ms))
    for _ in $([ "$launch" = mpirun ] && echo 1 2 || echo 1 2 3 4); do
        begin_only bench --set "launcher.start=${start_ms}ms"
        rest "0.$((RANDOM % 5))"
        find_processes
        kill_one "${ranks[@]}" || return
        if [ "$launch" = mpirun ]; then
            ends "5 1 137" 15000
            says 'rank [0-3] .*(was killed by|exited on) signal 9|is gone|1 process returned'
        else
            ends "4 5 137" $((8000 + start_ms))
            says "$(cause)|rank $rank of 4 did not connect within|cannot reach rank $rank within|rank $rank \(address host1, port 29500\) is gone"
        fi
    done
}

# Neither side can notify the other, and each must end.
host_is_cut_off() {
    local i
    begin bench --set "launcher.heartbeat=${silent_s}s"
    since=$(now_ms)
    cut host2
    for i in $(seq 6000); do
        find_processes
        [ ${#ranks[@]} = 0 ] && break
        rest 0.01
    done
    echo "all ranks had ended after $(($(now_ms) - since)) ms"
    nothing_left
    mend host2 # for mpirun, which has a process there
    # Ranks of one host lose a rank without a core for so long.
    if [ "$silent_s" -lt 18 ] && { grep -Eq 'rank 1 \([^)]*\) is gone: it sent no message' "$work"/err.0 ||
        grep -Eqs 'rank 0 \([^)]*\) is gone: it sent no message' "$work"/err.1; }; then
        late="a rank had no core for $silent_s s"
        silent_s=$((3 * silent_s))
        finish
        return
    fi
    ends 5 $((18000 + silent_s * 1000))
    says "rank [23] \\(host host2, [^)]*\\) is gone: it sent no message for $silent_s s"
    [ "$launch" = mpirun ] || says "rank 0 \\(host host1, [^)]*\\) is gone: it sent no message for $silent_s s"
}

silent_s=2 # heartbeat of ranks that are cut off
hosts_up 2 "$cable"
passes first
[ "$failed" = 0 ] || exit 1
echo "one iteration from start to end: $whole_ms ms"
declare -A kinds=([kill]=kill_in_mid_run [setup]=kill_in_set_up [cut]=host_is_cut_off)
until_in_time "${kinds[$kind]}"
[ "$failed" = 0 ] && passes afterwards
exit "$failed"
