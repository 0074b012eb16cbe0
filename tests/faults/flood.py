#!/usr/bin/env python3
"""flood.py EPA2A: a foreign process with 2,000 TCP connections per second to the rendezvous keeps no distant rank out. The
hosts are network namespaces; the distant rank reaches the rendezvous by a proxy that delays data by 50 ms."""
import os
import pathlib
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

EXPERIMENT = """version: 1
ranks: 2
timeout: 20s
launcher: env
moe: {max_tokens: 4, hidden: 128, experts: 4, topk: 2}
verify: {iterations: 3}
"""
PORT = 29577
RATE = 2000  # connections per second
OPEN = 500  # connections that the foreign process keeps open
DELAY = 0.05  # seconds
BEFORE = 4000  # connections before the distant rank starts
MOST = 60  # seconds for the launch
TOKEN = "0123456789abcdef0123456789abcdef"


def fail(*what):
    print("FAIL:", *what)
    sys.exit(1)


def flood(address, source):
    """Connects until standard input ends. Half of the connections send a foreign request before they close."""
    opened, count, begun = [], 0, time.monotonic()
    while not select.select([sys.stdin], [], [], 0)[0]:
        while count < (time.monotonic() - begun) * RATE:
            one = socket.socket()
            one.setblocking(False)
            one.bind((source, 0))
            one.connect_ex((address, PORT))
            opened.append(one)
            count += 1
            if count == BEFORE:
                print("started", flush=True)
            if len(opened) > OPEN:
                old = opened.pop(0)
                if count % 2 == 0:
                    try:
                        old.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                    except OSError:
                        pass
                old.close()
        time.sleep(0.0005)
    print(f"{count / (time.monotonic() - begun):.0f} connections per second", flush=True)


def forward(source, target):
    while True:
        try:
            data = source.recv(65536)
        except OSError:
            data = b""
        time.sleep(DELAY)
        try:
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)
        except OSError:
            return


def delay_connections(listener):
    while True:
        one = listener.accept()[0]
        time.sleep(DELAY)
        try:
            other = socket.create_connection(("10.99.0.1", PORT), 5)
            other.settimeout(None)
        except OSError:
            one.close()
            continue
        for pair in ((one, other), (other, one)):
            threading.Thread(target=forward, args=pair, daemon=True).start()


def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def main(epa2a):
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        (work / "x.yaml").write_text(EXPERIMENT, "utf-8")
        with subprocess.Popen(["unshare", "-n", "sleep", "600"]) as far:
            try:
                launch(epa2a, work, far.pid)
            finally:
                far.kill()


def wait_for_listener(first):
    end = time.monotonic() + MOST
    while True:
        try:
            socket.create_connection(("10.99.0.1", PORT), 1).close()
            return
        except OSError:
            if first.poll() is not None or time.monotonic() > end:
                fail("rank 0 does not listen:", first.communicate()[0])
            time.sleep(0.01)


def launch(epa2a, work, far):
    inside = ["nsenter", "-t", str(far), "-n"]
    while os.readlink(f"/proc/{far}/ns/net") == os.readlink("/proc/self/ns/net"):
        time.sleep(0.01)
    for command in (["ip", "link", "set", "lo", "up"],
                    ["ip", "link", "add", "near", "type", "veth", "peer", "name", "far", "netns", str(far)],
                    ["ip", "addr", "add", "10.99.0.1/24", "dev", "near"],
                    ["ip", "addr", "add", "10.99.0.5/24", "dev", "near"], ["ip", "link", "set", "near", "up"],
                    inside + ["ip", "link", "set", "lo", "up"], inside + ["ip", "addr", "add", "10.99.0.2/24", "dev", "far"],
                    inside + ["ip", "addr", "add", "10.99.0.3/24", "dev", "far"], inside + ["ip", "link", "set", "far", "up"]):
        done = run(*command)
        if done.returncode != 0:
            print("skip:", " ".join(command), done.stderr.strip())
            sys.exit(77)
    threading.Thread(target=delay_connections, args=(socket.create_server(("10.99.0.5", PORT)),), daemon=True).start()
    env = {**{key: value for key, value in os.environ.items() if not key.startswith(("RANK", "WORLD", "LOCAL", "MASTER", "EPA2A_"))},
           "WORLD_SIZE": "2", "MASTER_ADDR": "10.99.0.1", "MASTER_PORT": str(PORT), "EPA2A_JOB_TOKEN": TOKEN}
    command = [epa2a, "verify", work / "x.yaml", "--quiet", "--set", "transport=ucx", "--set", "launcher.start=40s"]
    children = []
    try:
        first = subprocess.Popen(command, env={**env, "RANK": "0"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        children.append(first)
        wait_for_listener(first)
        foreign = subprocess.Popen(inside + [sys.executable, __file__, "--flood", "10.99.0.1", "10.99.0.3"],
                                   stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(foreign)
        foreign.stdout.readline()
        begun = time.monotonic()
        second = subprocess.Popen(inside + [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, env={**env, "RANK": "1", "MASTER_ADDR": "10.99.0.5"})
        children.append(second)
        texts = [second.communicate(timeout=MOST)[0], first.communicate(timeout=MOST)[0]]
        took = time.monotonic() - begun
        rate = foreign.communicate("end\n")[0].strip()
    finally:
        for child in children:
            child.kill()
            child.wait()
    if (first.returncode, second.returncode) != (0, 0):
        fail(f"{rate}; exit codes {first.returncode} and {second.returncode}:\n" + "\n".join(texts))
    print(f"{rate}: the ranks ended after {took:.1f} s")


if __name__ == "__main__":
    if sys.argv[1] == "--flood":
        flood(*sys.argv[2:])
    elif len(sys.argv) == 2:
        if any(shutil.which(program) is None for program in ("unshare", "nsenter", "ip")) or \
                subprocess.run(["unshare", "-n", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            print("skip: network namespaces are not available")
            sys.exit(77)
        sys.exit(subprocess.run(["unshare", "-n", sys.executable, __file__, sys.argv[1], "inside"], check=False).returncode)
    else:
        main(sys.argv[1])
