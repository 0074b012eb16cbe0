#!/usr/bin/env python3
"""large_files.py EPA2A: commands read large and sparse files in parts, or refuse them early.

Every sparse file has 3 GiB. A command may take 200 MiB of memory and 20 s for it, and prints the place and the
reason."""
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GIB = 1 << 30
PEAK = 200 << 20
SECONDS = 20
EXPERIMENT = """version: 1
ranks: 2
moe: {{hidden: 64, experts: 4, topk: 2, max_tokens: 4}}
algorithm: token_flag
launcher: thread
routing: {}
verify: {{iterations: 1}}
"""


def npy(descr, shape, data=b""):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header.encode() + data


def write(path, begin, size, pieces=()):
    """A sparse file of so many bytes; (offset, bytes) of pieces."""
    with open(path, "wb") as file:
        file.write(begin)
        for at, data in pieces:
            file.seek(at)
            file.write(data)
        file.truncate(size)
    return path


def run(args):
    """Exit code, standard error, peak of memory and seconds of a command."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        begun = time.monotonic()
        process = subprocess.Popen(args, stdin=subprocess.DEVNULL, stdout=out, stderr=err)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        err.seek(0)
        return process.returncode, err.read().decode(), usage.ru_maxrss << 10, time.monotonic() - begun


def main():
    epa = os.path.realpath(sys.argv[1])
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        small = npy("<i4", "(8, 2)")
        states = npy("<f4", "(8, 64)")
        write("long.npy", small, 3 * GIB)
        write("states.npy", states, 3 * GIB)
        write("zeros", b"", 3 * GIB)
        write("lines.jsonl", b'{"topk_ids": [0, 1]}\n', 3 * GIB)
        write("doc.json", b'{"traceEvents": [\n', 3 * GIB)
        write("short.npy", small, len(small) + 63)
        # 512 MiB with data in the last layer only; the rows of the other layers are holes.
        tokens, layers = 4096, 65536
        big = npy("|u1", f"({tokens}, {layers}, 2)")
        write("layers.npy", big, len(big) + 2 * layers * tokens,
              [(len(big) + 2 * layers * (token + 1) - 2, b"\x00\x03") for token in range(tokens)])
        route = EXPERIMENT.format("{kind: file, path: PATH}")
        for name in ("long.npy", "short.npy", "zeros", "lines.jsonl"):
            Path(name + ".yaml").write_text(route.replace("PATH", name))
        Path("layers.yaml").write_text(route.replace("PATH", f"layers.npy, layer: {layers - 1}"))
        Path("states.yaml").write_text(EXPERIMENT.format("{hidden_states: states.npy}"))
        sizes = rf"long\.npy: offset \d+: too long: .* {len(small) + 64} bytes.* {3 * GIB}$"
        zero = r":2:1: a zero byte"
        cases = [
            (["verify", "long.npy.yaml"], 2, sizes),
            (["routing", "stats", "long.npy"], 2, sizes),
            (["verify", "short.npy.yaml"], 2, rf"truncated: .* {len(small) + 64} bytes.* {len(small) + 63}$"),
            (["verify", "zeros.yaml"], 2, r"zeros:1:1: a line of more than 1 MiB"),
            (["verify", "lines.jsonl.yaml"], 2, r"lines\.jsonl:2:1: a line of more than 1 MiB"),
            (["verify", "states.yaml"], 2, rf"states\.npy: .*too long: .* {len(states) + 2048} bytes.* {3 * GIB}$"),
            (["verify", "layers.yaml"], 0, None),
            (["trace", "summary", "doc.json"], 2, zero),
            (["trace", "merge", "doc.json", "--out", "x.json"], 2, zero),
            (["compare", "doc.json", "doc.json"], 2, zero),
            (["import", "lines.jsonl"], 2, zero),
            (["verify", "zeros"], 2, "zeros"),
            (["config", "check", "doc.json"], 2, "doc.json"),
        ]
        for args, code, words in cases:
            got, err, peak, seconds = run([epa] + args)
            if got != code or (words and not re.search(words, err, re.M)) or peak > PEAK or seconds > SECONDS:
                print("failed:", args, flush=True)
                failed.append(f"{args}: exit code {got}, {peak >> 20} MiB, {seconds:.1f} s: {err[-300:]}")
        # A pipe has no size: the reader finds its end.
        good = b"".join(n.to_bytes(4, "little") for n in (0, 1)) * 8
        for data, expected, words in ((good[:-1], 2, "truncated"), (good, 0, ""), (good + b"x", 2, "too long")):
            Path("piped").write_bytes(small + data)
            code, err, _, _ = run(["bash", "-c", f"exec {epa} routing stats <(cat piped)"])
            if code != expected or words not in err:
                failed.append(f"pipe of {len(data)} bytes: exit code {code}: {err[-300:]}")
    print("\n".join(failed))
    return 1 if failed else 0


sys.exit(main())
