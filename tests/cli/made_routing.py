#!/usr/bin/env python3
"""made_routing.py warmup|zipf: files of routing on standard output, the same each time.

warmup: JSON lines, top-2 of 16 experts, 256 times one token and then 4096 with even load on 15.
zipf:   .npy, two layers, top-4 of 32 experts; the second layer has a popularity of i ^ -0.8."""
import json
import random
import struct
import sys


def warmup():
    print(json.dumps({"type": "meta", "top_k": 2, "num_experts": 16}))
    for i in range(256 + 4096):
        print(json.dumps({"topk_ids": [3, 9] if i < 256 else random.sample(range(15), 2)}))


def zipf():
    popularity, rows = [(i + 1) ** -0.8 for i in range(32)], []
    for _ in range(6000):
        ids = []
        while len(ids) < 4:
            expert = random.choices(range(32), popularity)[0]
            if expert not in ids:
                ids.append(expert)
        rows += [0, 1, 2, 3] + ids
    head = b"{'descr': '|u1', 'fortran_order': False, 'shape': (6000, 2, 4), }\n"
    sys.stdout.buffer.write(b"\x93NUMPY\x01\0" + struct.pack("<H", len(head)) + head + bytes(rows))


if __name__ == "__main__":
    random.seed(1)
    {"warmup": warmup, "zipf": zipf}[sys.argv[1]]()
