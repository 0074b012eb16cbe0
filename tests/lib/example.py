#!/usr/bin/env python3
"""example.py PROGRAM RANKS [WRAPPER...]: an example that connects by the variables of torchrun runs with these ranks, and
each rank reports no wrong token. WRAPPER is a command that runs the program, such as valgrind."""
import os
import socket
import subprocess
import sys


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def main(program, ranks, *wrapper):
    shared = os.environ | {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    running = [subprocess.Popen([*wrapper, program], env=shared | {"RANK": str(r)}, stdout=subprocess.PIPE, text=True)
               for r in range(int(ranks))]
    failed = 0
    for r, process in enumerate(running):
        text = process.communicate(timeout=100)[0]
        if process.returncode != 0 or text != f"rank {r}: 4 tokens, 0 wrong\n":
            print(f"rank {r} ended with {process.returncode}: {text!r}")
            failed += 1
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
