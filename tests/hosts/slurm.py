#!/usr/bin/env python3
"""slurm.py EPA2A SOURCE: examples/slurm.sbatch on two nodes of a Slurm that this test starts for itself, with both nodes on
this host. Needs root and the Debian package slurm-wlm; skips (77) without."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time

CONF = """ClusterName=test
SlurmctldHost={host}
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
SlurmctldPort={port}
StateSaveLocation={work}/state
SlurmdSpoolDir={work}/spool-%n
SlurmctldPidFile={work}/slurmctld.pid
SlurmdPidFile={work}/slurmd-%n.pid
SlurmctldLogFile={work}/slurmctld.log
SlurmdLogFile={work}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
NodeName=n1 NodeHostname={host} NodeAddr={address} Port={port1} CPUs=4
NodeName=n2 NodeHostname={host} NodeAddr={address} Port={port2} CPUs=4
PartitionName=all Nodes=n1,n2 Default=YES State=UP
"""
WAIT_S = 60


def skip(why):
    print(f"SKIP: {why}")
    sys.exit(77)


def until(true, what):
    end = time.monotonic() + WAIT_S
    while not true():
        if time.monotonic() > end:
            return skip(f"Slurm does not start here: {what}")
        time.sleep(0.2)
    return None


def main(epa2a, source):
    programs = ("sbatch", "srun", "scontrol", "sinfo", "slurmctld", "slurmd")
    missing = [name for name in programs if shutil.which(name) is None]
    if missing:
        skip(f"no {missing[0]} (Debian package slurm-wlm)")
    if os.geteuid() != 0:
        skip("only root can start slurmd")
    addresses = [a for a in subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
                 if ":" not in a]
    if not addresses:
        skip("this host has no address but the loopback")
    host = os.uname().nodename.split(".")[0]
    with tempfile.TemporaryDirectory(prefix="epa2a-slurm-") as folder:
        work, base = pathlib.Path(folder), 20000 + os.getpid() % 10000  # below the ports that the kernel chooses
        for name in ("state", "spool-n1", "spool-n2", "job"):
            (work / name).mkdir()
        (work / "slurm.conf").write_text(CONF.format(host=host, work=work, address=addresses[0], port=base, port1=base + 1,
                                                     port2=base + 2))
        env = {**os.environ, "SLURM_CONF": str(work / "slurm.conf"), "EPA2A": os.path.abspath(epa2a)}
        daemons = [subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                    stderr=subprocess.DEVNULL)
                   for command in (["slurmctld", "-D", "-c"], ["slurmd", "-D", "-N", "n1"], ["slurmd", "-D", "-N", "n2"])]
        try:
            def idle():
                nodes = subprocess.run(["sinfo", "-h", "-N", "-o", "%t"], env=env, capture_output=True, text=True, check=False)
                return nodes.stdout.split() == ["idle", "idle"]
            until(idle, "its nodes are not idle")
            done = subprocess.run(["sbatch", "--wait", "--ntasks-per-node", "2", f"{source}/examples/slurm.sbatch",
                                   f"{source}/configs/small.yaml", "--set", "transport=ucx", "--set", "timeout=30s"],
                                  cwd=work / "job", env=env, capture_output=True, text=True, check=False, timeout=150)
            output = "".join(path.read_text() for path in (work / "job").glob("*.out"))
            if "ucx" in output and "is not part of this build" in output:
                skip("no transport ucx")
            assert done.returncode == 0, (done, output)
            (results,) = (work / "job").glob("epa2a-*/results.jsonl")
            (line,) = results.read_text().splitlines()
            (result,) = json.loads(line)["results"]
            assert result["status"] == "ok" and result["world"]["size"] == 4, result["world"]
            assert result["context"]["nodes"] == "2", result["context"]
            assert "Slurm" in result["world"]["started_by"], result["world"]
        finally:
            for daemon in reversed(daemons):
                daemon.send_signal(signal.SIGTERM)
            for daemon in daemons:
                try:
                    daemon.wait(10)
                except subprocess.TimeoutExpired:
                    daemon.kill()
                    daemon.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
