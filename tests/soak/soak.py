#!/usr/bin/env python3
"""Random experiments for a given time: shapes, options, transports, stragglers, faults.

    soak.py EPA2A [--seconds T] [--seed S] [--verbose]

Each is `epa2a verify` of something small that nobody wrote down; a fault that is survived must change nothing, a rank that
is killed must end the run with 5. Last line: `N runs, I iterations, E elements, W wrong, H hangs, R refused, F failed, seed
S`. Exit code 1 if anything is wrong, hangs or fails otherwise; each of these comes with the command that repeats it."""
import argparse
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time

HANG_S = 120  # far beyond any time limit of the experiments

parser = argparse.ArgumentParser()
parser.add_argument("epa2a")
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
parser.add_argument("--verbose", action="store_true")
args = parser.parse_args()
R = random.Random(args.seed)
have = subprocess.run([args.epa2a, "list"], capture_output=True, text=True, check=True).stdout
total = dict.fromkeys(["runs", "iterations", "elements", "wrong", "hangs", "refused", "failed"], 0)


def there(name):
    return re.search(rf"^  {name} ", have, re.M) is not None


def maybe(chance, *values):
    return list(values) if R.random() < chance else []


def transport():
    kinds = [["transport=shm"]] * 4 + [["transport=reorder"], ["transport=reorder", "transport.peers=pair"]]
    if there("ucx"):
        kinds += [["transport=ucx"], ["transport=ucx", "transport.direct=false"], ["transport=ucx", "transport.tls=tcp"]]
    return R.choice(kinds)


def moe(ranks):
    group, name = R.choice([16, 32, 64, 128]), R.choice(["ll_v2", "ll_v2", "ll_v2", "ll_v1", "token_flag"])
    experts = ranks * R.randint(1, 6)
    out = [f"moe.experts={experts}", f"moe.topk={R.randint(1, min(experts, 12))}", f"moe.max_tokens={R.choice([1, 2, 5, 16, 33, 100])}",
           f"moe.hidden={group * R.randint(1, 12)}", f"moe.fp8_group_size={group}", f"algorithm={name}"]
    out += maybe(.4, f"routing={{kind: {R.choice(['zipf', 'lognormal'])}}}") or maybe(
        .4, f"routing={{kind: {R.choice(['hot', 'masked'])}, share: {R.choice([0, .3, .9, 1])}}}")
    out += maybe(.5, "algorithm.dispatch_dtype=" + R.choice(["fp8", "native"]))
    out += maybe(.3, "moe.dtype=f16") + maybe(.3, "expert.kind=rank")
    if name == "ll_v2":
        out += maybe(.5, "algorithm.layout=rank", *maybe(.5, "algorithm.dedup=" + R.choice(["true", "false"])))
        out += maybe(.2, "algorithm.nontemporal=" + R.choice(["on", "off"])) + maybe(.2, "algorithm.buffers=1")
    return out


def allgather(_):
    return ["algorithm=allgather", f"allgather.max_rows={R.choice([1, 7, 64, 300])}",
            f"allgather.row_bytes={16 * R.randint(1, 200)}", "algorithm.mode=" + R.choice(["push", "pull"]),
            f"algorithm.chunks={R.choice([1, 2, 8])}"]


def draw():
    """Settings, and the exit codes that are right."""
    ranks = R.choice([1, 2, 2, 3, 4, 4, 5, 8])
    iterations, codes = R.choice([1, 20, 100]), {0}
    body = allgather(ranks) if R.random() < .15 else moe(ranks)
    out = [f"ranks={ranks}", f"seed={R.randrange(1 << 32)}", f"verify.iterations={iterations}", "timeout=20s"] + transport() + body
    out += [R.choice(["tokens=full", "tokens=random"])] + maybe(.25, "launcher=thread")
    out += maybe(.2, "verify.order=" + R.choice(["lockstep", "pipelined"])) + maybe(.2, "backend.workers=2")
    out += maybe(.15, f"ranks_per_node={R.choice([n for n in range(1, ranks + 1) if ranks % n == 0])}", "transport=ucx") if there("ucx") else []
    out += maybe(.2, f"verify.straggle={R.choice([1, 5])}ms")
    kind = R.choice(["straggle"] if "launcher=thread" in out else ["stop", "straggle", "kill"]) if R.random() < .25 else None
    if kind is not None:
        out.append(f"fault={{kind: {kind}, rank: {R.randrange(ranks)}, iteration: {R.randrange(iterations)}"
                   + (", for: 30ms}" if kind != "kill" else "}"))
        codes = {5} if kind == "kill" else {0}
    return out, codes


def attempt(settings, codes):
    base = allgather_base if "algorithm=allgather" in settings else moe_base
    command = [args.epa2a, "verify", base, *(word for setting in settings for word in ("--set", setting))]
    total["runs"] += 1
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S)
    except subprocess.TimeoutExpired:
        total["hangs"] += 1
        return "hangs", command, ""
    said = re.search(r"^(?:# checked: |verified (\d+) iterations?: )([\d,]+) elements compared, ([\d,]+) wrong", done.stdout, re.M)
    if said is not None:
        count = [int((group or "0").replace(",", "")) for group in said.groups()]
        for key, n in zip(("iterations", "elements", "wrong"), count):
            total[key] += n
    if done.returncode == 2 or done.returncode == 3 and "unsupported" in done.stderr:
        total["refused"] += 1
        return ("refused", command, done.stderr) if args.verbose else None
    if done.returncode not in codes:
        total["failed"] += 1
        return f"exit code {done.returncode}, not {sorted(codes)}", command, done.stderr
    return None


folder = tempfile.TemporaryDirectory()
moe_base, allgather_base = (folder.name + name for name in ("/moe.yaml", "/allgather.yaml"))
for base, operation in (moe_base, "moe: {max_tokens: 1}"), (allgather_base, "operation: allgather\nallgather: {max_rows: 1}"):
    pathlib.Path(base).write_text(f"version: 1\nname: soak\n{operation}\n")
end = time.monotonic() + args.seconds
while time.monotonic() < end:
    found = attempt(*draw())
    if found is not None:
        print(f"{found[0]}: {shlex.join(found[1])}\n{found[2]}", flush=True)
print(", ".join(f"{n} {key}" for key, n in total.items()) + f", seed {args.seed}")
# What is refused is no experiment: more than half of it would say that this script is out of date.
sys.exit(total["wrong"] + total["hangs"] + total["failed"] > 0 or total["refused"] * 2 > total["runs"])
