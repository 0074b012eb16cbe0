#!/usr/bin/env python3
"""example.py PROGRAM RANKS [WRAPPER...]: an example that connects by the variables of torchrun runs with these ranks, and
each rank reports no wrong token. WRAPPER is a command that runs the program, such as valgrind."""
import os
import socket
import subprocess
import sys


def reserve_port():
    """A bound socket keeps its port from other programs. Rank 0 can listen there, since both set SO_REUSEADDR."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def main(program, ranks, *wrapper):
    reserved = reserve_port()
    shared = os.environ | {"WORLD_SIZE": ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(reserved.getsockname()[1])}
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
