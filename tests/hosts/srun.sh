#!/bin/bash
# srun.sh EPA2A CONFIG PMI: ranks started by srun in a Slurm that this script sets up. Ranks of one node
# verify, and a killed rank ends all with its name. With PMI "pmix" ranks of two nodes, whose daemons
# share this host, meet by PMIx. Exits with 77 without Slurm or without root, which its daemons need.
set -u
epa2a=$1 config=$2 pmi=$3
PATH=$PATH:/usr/sbin:/sbin
for program in srun slurmctld slurmd munged; do
    [ "$(id -u)" = 0 ] && type "$program" >/dev/null 2>&1 || { echo "SKIP: no $program, or not root"; exit 77; }
done
work=$(mktemp -d)
chmod 755 "$work" # munged needs this for its socket
mkdir "$work/state" "$work"/{spool,tmp}.node{1,2}
unset "${!MASTER_@}" EPA2A_JOB_TOKEN
host=$(hostname -s) port=$((20000 + $$ % 10000))
daemons=
end() {
    [ -z "$daemons" ] || kill $daemons 2>/dev/null
    wait
    rm -rf "$work"
}
trap end EXIT
cat >"$work/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket=$work/munge
CredType=cred/munge
SlurmctldPort=$port
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool.%n
TmpFS=$work/tmp.%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
NodeName=node1 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 1)) CPUs=$(nproc) State=UNKNOWN
NodeName=node2 NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + 2)) CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=node[1-2] Default=YES State=UP
CONF
export SLURM_CONF=$work/slurm.conf
(umask 077 && head -c 1024 /dev/urandom >"$work/key")
munged --foreground --force --key-file="$work/key" --socket="$work/munge" --pid-file="$work/munged.pid" \
    --seed-file="$work/seed" --log-file="$work/munged.log" >"$work/log" 2>&1 &
daemons=$!
for _ in $(seq 100); do [ -S "$work/munge" ] && break || sleep 0.1; done
slurmctld -D >>"$work/log" 2>&1 &
daemons+=" $!"
for node in node1 node2; do
    slurmd -D -N $node >>"$work/log" 2>&1 &
    daemons+=" $!"
done
for _ in $(seq 100); do [ "$(sinfo -h -t idle -o %D 2>/dev/null)" = 2 ] && break || sleep 0.1; done

# run CODE WORDS SETTING...
run() {
    local want=$1 words=$2 code
    shift 2
    timeout 100 srun $places -n 4 --overcommit "$epa2a" verify "$config" --set launcher=env --set ranks=4 \
        --set moe.max_tokens=16 --set moe.hidden=512 --set verify.iterations=20 --timeout 60s "$@" >"$work/out" 2>&1
    code=$?
    [ "$code" = "$want" ] && grep -q "$words" "$work/out" && return
    echo "FAIL: exit code $code, not $want, or not '$words':"
    cat "$work/out" "$work/log"
    exit 1
}
places=--nodes=1
run 0 'verified 20 iterations: .* 0 wrong'
run 137 'rank 2 .*was killed by signal 9' --set 'fault={kind: kill, rank: 2, iteration: 1}'
echo "4 ranks by srun verify, and end by the name of one that is killed"
[ "$pmi" = pmix ] && srun --mpi=list 2>&1 | grep -qw pmix || { echo "no PMIx here"; exit 0; }
places="--nodes=2 --mpi=pmix"
run 0 'verified 20 iterations: .* 0 wrong' --set transport=ucx
grep -q 'SLURM_STEP_NUM_TASKS=4' "$work/out" || { echo "FAIL: not by Slurm"; exit 1; }
echo "4 ranks of two nodes meet by PMIx"
