#!/usr/bin/env python3
"""ucx_limits.py EPA2A: a transport that lacks threads, file descriptors or ports exits with 3, names the limit, its value
and a value that suffices, and ends in time."""
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

EXPERIMENT = """version: 1
ranks: {ranks}
timeout: 5s
launcher: {launcher}
transport: {{name: ucx, tls: "{tls}"}}
moe: {{max_tokens: 16, hidden: 256, experts: 8, topk: 2}}
run: {{iterations: 2}}
"""
MOST = 20  # seconds; UCX itself would bind a listener for 65 s
OTHER_USER = 64321  # without processes; root has no limit of processes
RANGE = "/proc/sys/net/ipv4/ip_local_port_range"


def fail(*what):
    print("FAIL:", *what)
    sys.exit(1)


class Runner:
    def __init__(self, epa2a, work):
        self.epa2a, self.work = epa2a, work

    def run(self, name, limit, value, under=(), user=None, **options):
        """Returns the exit code and standard error of a run under a resource limit, or with a range of ports."""
        file = os.path.join(self.work, "x.yaml")
        with open(file, "w", encoding="utf-8") as out:
            out.write(EXPERIMENT.format(**options))

        def prepare():
            if user is not None:
                os.setgroups([])
                os.setuid(user)
            if limit is not None:
                resource.setrlimit(limit, (value, value))

        begin = time.monotonic()
        done = subprocess.run([*under, self.epa2a, "run", file, "--quiet"], capture_output=True, text=True, check=False,
                              preexec_fn=prepare, timeout=120)
        took = time.monotonic() - begin
        if took > MOST:
            fail(f"{name}: ended after {took:.1f} s: {done.stderr}")
        return done.returncode, done.stderr

    def limited(self, name, limit, value, word, **options):
        """A run fails with exit code 3 and names the limit; a run with the named value succeeds."""
        code, text = self.run(name, limit, value, **options)
        named = re.search(rf"RLIMIT_{word} is {value} and needs to be (\d+)", text)
        if code != 3 or named is None:
            fail(f"{name}: exit code {code}: {text}")
        code, text = self.run(name, limit, int(named[1]), **options)
        if code != 0:
            fail(f"{name}: {named[0]}, and with this value the exit code is {code}: {text}")
        print(f"{name}: {named[0]}")


def is_readable(epa2a):
    """Whether the other user can run the program."""
    try:
        return subprocess.run([epa2a, "--version"], user=OTHER_USER, capture_output=True, check=False).returncode == 0
    except PermissionError:
        return False


def set_range(ports):
    return ["unshare", "-n", "sh", "-c", f'ip link set lo up && echo "{ports}" >{RANGE} && exec "$@"', "sh"]


def main(epa2a):
    known = json.loads(subprocess.run([epa2a, "list", "transport", "--json"], capture_output=True, text=True,
                                      check=True).stdout)
    if '"ucx"' not in json.dumps(known):
        print("transport ucx is not part of this build")
        sys.exit(77)
    skipped = []
    with tempfile.TemporaryDirectory() as work:
        os.chmod(work, 0o755)
        runner = Runner(epa2a, work)
        for launcher, tls, ranks, value in (("fork", "", 2, 16), ("fork", "tcp", 8, 26), ("thread", "", 4, 26),
                                            ("thread", "tcp", 2, 26)):
            runner.limited(f"{launcher}, {ranks} ranks, tls '{tls}'", resource.RLIMIT_NOFILE, value, "NOFILE",
                           launcher=launcher, tls=tls, ranks=ranks)
        if os.getuid() == 0 and is_readable(epa2a):
            runner.limited("4 processes", resource.RLIMIT_NPROC, 4, "NPROC", user=OTHER_USER, launcher="fork", tls="",
                           ranks=2)
        else:
            skipped.append("RLIMIT_NPROC: needs root, and a build that other users can read")
        spaces = shutil.which("ip") and subprocess.run(set_range("60000 60000") + ["true"], capture_output=True,
                                                       check=False).returncode == 0
        for ranks, ports, free in ((2, "60000 60000", False), (4, "60000 60002", False), (4, "60000 60040", True)):
            if not spaces:
                skipped.append("ports: network namespaces are not available")
                break
            code, text = runner.run(ports, None, None, under=set_range(ports), launcher="fork", tls="tcp", ranks=ranks)
            if code != (0 if free else 3) or (not free and f"ip_local_port_range ({ports})" not in text):
                fail(f"{ranks} ranks, ports {ports}: exit code {code}: {text}")
            print(f"{ranks} ranks, ports {ports}: exit code {code}")
    for what in skipped:
        print("not tested:", what)


if __name__ == "__main__":
    main(*sys.argv[1:])
