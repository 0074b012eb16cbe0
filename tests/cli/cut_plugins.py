#!/usr/bin/env python3
"""cut_plugins.py EPA2A PLUGIN: `list` and `run` report each truncated copy of PLUGIN, and end without a signal."""
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

EPA2A, PLUGIN = (os.path.realpath(arg) for arg in sys.argv[1:3])


def lengths(data):
    """Lengths around each end of a header, table and segment, and 150 between."""
    table, sections = struct.unpack_from("<QQ", data, 32)
    size, n = struct.unpack_from("<HH", data, 54)
    ends = [0, 4, 16, 64, table, table + n * size, sections, len(data)]
    for i in range(n):
        offset, _, _, bytes_ = struct.unpack_from("<QQQQ", data, table + i * size + 8)
        ends += [offset, offset + bytes_]
    cuts = {end + by for end in ends for by in (-1, 0, 1)} | set(range(0, len(data), max(len(data) // 150, 1)))
    return sorted(cut for cut in cuts if 0 <= cut < len(data))


def main():
    data = pathlib.Path(PLUGIN).read_bytes()
    if data[4] != 2 or data[5] != 1:
        print("this test reads 64-bit little-endian ELF files")
        return 77
    cuts = lengths(data)
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        for cut in cuts:
            path = pathlib.Path(folder, f"epa2a-transport-cut{cut}.so")
            path.write_bytes(data[:cut])
            path.chmod(0o644)
        shutil.copy(PLUGIN, pathlib.Path(folder, "epa2a-transport-good.so"))
        done = subprocess.run([EPA2A, "list", "transport", "--plugin-path", folder], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              text=True, timeout=100, check=False)
        assert done.returncode == 0, f"list: exit code {done.returncode}: {done.stdout[-500:]}"
        text = " ".join(done.stdout.split())
        for cut in cuts:
            begin = text.index(f" cut{cut} ")
            entry = text[begin:text.index(f"cut{cut}.so", begin)]
            assert "truncated: it has " + str(cut) + " bytes" in entry, entry
        for cut in (len(data) // 4, len(data) // 2, len(data) - 1):
            with open(os.path.join(folder, f"epa2a-transport-good.so"), "r+b") as file:
                file.truncate(cut)
            done = subprocess.run([EPA2A, "config", "check", "-", "--plugin-path", folder], input="version: 1\ntransport: good\n",
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=100, check=False)
            assert done.returncode in (2, 3) and "truncated" in done.stdout, (done.returncode, done.stdout[-500:])
    print(f"{len(cuts)} lengths")
    return 0


sys.exit(main())
