# Hosts as namespaces of this host; sourced by the tests in this folder.
#
# A test runs itself again as process 1 of PID, network, mount and (without root) user namespaces.
# A host is a process in them with its own network and host name, on a bridge to the others. All of
# this ends with process 1, however the test ends, and is invisible outside. Files of a test are in
# $work, in its own /dev/shm.
#
#   enter ARGS            call first, with the arguments of the test
#   hosts_up N CABLE      host1 to hostN, 10.1.0.1 and so on; CABLE is the program cable.py
#   on HOST COMMAND       runs a command there
#   link_is HOST DELAY_US LOSS_PERCENT   sets both directions of its cable
#   cut HOST; mend HOST   pulls its cable out, and puts it back
#   start LAUNCH PLACES COMMAND          LAUNCH: mpirun, or env for the variables of torchrun;
#                         PLACES: "host1 host1 host2", the host of each rank, or "-" for a rank
#                         that env leaves out. Output goes to $work/out.R and $work/err.R; the
#                         whole output of mpirun to out.0 and err.0. The limit is 100 s.
#   finish                waits for it; $codes has the exit code of each rank, or of mpirun
#   find_processes        see ../faults/late.sh
#   nothing_left          checks that no process and no file is left

. "$(dirname "$0")/../faults/late.sh"
. "$(dirname "$0")/../contract/algorithm/mpirun.sh"

# needs EPA2A LAUNCH TRANSPORT: skips if one was not built or is not installed
needs() {
    "$1" list transport | grep -q "^  $3 " || skip "built without transport $3"
    [ "$2" != mpirun ] || needs_mpirun "$1"
}

enter() {
    local user why=
    local -a new
    if [ "${HOSTS_ENTERED-}" = yes ]; then
        set_up
        return
    fi
    command -v unshare >/dev/null && command -v nsenter >/dev/null ||
        skip "unshare or nsenter is missing (Debian: util-linux)"
    command -v ip >/dev/null || skip "ip is missing (Debian: iproute2)"
    for user in no yes; do
        new=(--net --uts --mount --pid --fork --kill-child --mount-proc)
        [ $user = no ] || new+=(--user --map-root-user)
        # Plugins are loaded from folders of root, which is another user in a namespace that maps
        # only the own user.
        if why=$(unshare "${new[@]}" sh -c 'mount -t tmpfs hosts /dev/shm &&
            mount --bind /dev/null /etc/hosts && hostname host0 &&
            ip link add type veth && ip link add name bridge type bridge || exit 1
            [ "$(stat -c %u /)" = 0 ] || { echo "this user has no root in them"; exit 1; }' 2>&1); then
            HOSTS_ENTERED=yes exec unshare "${new[@]}" bash "$0" "$@"
        fi
    done
    skip "no namespaces with networks here: $(echo "$why" | head -n 1)"
}

set_up() {
    mount -t tmpfs hosts /dev/shm || exit 99
    work=/dev/shm/.test
    mkdir "$work" || exit 99
    export TMPDIR=$work
    unset HOSTS_ENTERED
    echo 127.0.0.1 localhost >"$work/hosts"
    mount --bind "$work/hosts" /etc/hosts || exit 99
    ip link set dev lo up
    ip link add name bridge type bridge
    ip link set dev bridge up
    # The environment of a shell on another host.
    cat >"$work/agent" <<EOF
#!/bin/sh
host=\$1
shift
exec nsenter -t "\$(cat $work/\$host)" -n -u -i env -i PATH="\$PATH" TMPDIR=$work sh -c "\$*"
EOF
    chmod +x "$work/agent"
}

on() {
    local host=$1
    shift
    nsenter -t "$(cat "$work/$host")" -n -u -i "$@"
}

# give_address N: to eth0 of that new host
give_address() {
    on "host$1" ip address add "10.1.0.$1/24" dev eth0 &&
        on "host$1" ip link set dev eth0 up || exit 99
}

# plug HOST: a cable without delay and loss
plug() {
    ip link add "to_$1" type veth peer name eth0 netns "$(cat "$work/$1")" &&
        ip link set dev "to_$1" master bridge up && give_address "${1#host}"
}

hosts_up() {
    local i _
    cable=$2
    for i in $(seq "$1"); do
        unshare --net --uts --ipc sh -c "hostname host$i && echo \$\$ >$work/host$i && exec sleep infinity" &
        for _ in $(seq 1000); do
            [ -s "$work/host$i" ] && break
            sleep 0.01
        done
        echo "10.1.0.$i host$i" >>"$work/hosts"
        plug "host$i" || exit 99
        on "host$i" ip link set dev lo up
    done
}

# Uses netem, or a cable program if the kernel lacks netem.
link_is() {
    local host=$1 delay=$2 loss=$3 _
    if tc qdisc add dev "to_$host" root netem delay "${delay}us" loss "$loss%" 2>/dev/null &&
        on "$host" tc qdisc add dev eth0 root netem delay "${delay}us" loss "$loss%"; then
        echo "the link of $host: $delay us, $loss % lost, by netem"
        return
    fi
    ip link delete dev "to_$host"
    "$cable" "to_$host" "$(cat "$work/$host")" eth0 "$delay" "$loss" >"$work/cable" &
    for _ in $(seq 500); do
        grep -qs ready "$work/cable" && break
        sleep 0.01
    done
    ip link set dev "to_$host" master bridge up && give_address "${host#host}"
    echo "the link of $host: $delay us, $loss % lost, by $(basename "$cable")"
}

cut() { ip link set dev "to_$1" down; }
mend() { ip link set dev "to_$1" up; }

count() { tr ' ' '\n' <<<"$2" | grep -cx "$1"; }

start_mpirun() {
    local places=$1 name list=
    shift
    for name in $(tr ' ' '\n' <<<"$places" | uniq); do
        list=$list,$name:$(count "$name" "$places")
    done
    set -- --allow-run-as-root --bind-to none --mca plm_rsh_agent "$work/agent" \
        --host "${list#,}" -x UCX_TLS -x UCX_NET_DEVICES \
        ${EPA2A_PLUGIN_PATH:+-x EPA2A_PLUGIN_PATH} env ${environment-} "$@"
    on host1 timeout -k 5 100 mpirun "$@" >"$work/out.0" 2>"$work/err.0" </dev/null &
    pids=$!
}

start_env() {
    local places=$1 name r=0 size before=
    shift
    size=$(wc -w <<<"$places")
    pids=
    for name in $places; do
        if [ "$name" != - ]; then
            RANK=$r WORLD_SIZE=$size LOCAL_RANK=$(count "$name" "$before") \
                LOCAL_WORLD_SIZE=$(count "$name" "$places") MASTER_ADDR=host1 MASTER_PORT=29500 \
                EPA2A_JOB_TOKEN="the test's own token" \
                on "$name" timeout -k 5 100 "$@" >"$work/out.$r" 2>"$work/err.$r" </dev/null &
            pids="$pids $!"
        fi
        r=$((r + 1))
        before="$before $name"
    done
}

start() {
    local kind=$1
    shift
    rm -f "$work"/out.* "$work"/err.*
    "start_$kind" "$@"
}

finish() {
    local pid
    codes=
    for pid in $pids; do
        wait "$pid"
        codes="$codes $?"
    done
    codes=${codes# }
}

# mpirun removes the files of MPI after the end of the ranks.
nothing_left() {
    local begun files
    none_left
    begun=$(now_ms)
    files=$(ls /dev/shm)
    while [ -n "$files" ] && [ $(($(now_ms) - begun)) -le "$late_ms" ]; do
        rest 0.01
        files=$(ls /dev/shm)
    done
    [ -z "$files" ] || fail "left in /dev/shm: $files"
}
