#!/usr/bin/env python3
"""Random experiments for a given time: shapes, options, transports, stragglers, faults.

    soak.py EPA2A [--seconds T] [--runs N] [--seed S] [--only SETTING] [--iterations N] [--hang T] [--verbose]

Each is `epa2a verify` of a small random experiment. A fault that the run survives must not change the result; a
killed rank must end the run with 5. Last line: `N runs, I iterations, E elements, W wrong, H hangs, R refused, F
failed, seed S`. Exit code 1 if a run is wrong, hangs or fails otherwise; each of these is printed with the command
that repeats it. A hang is a run whose `epa2a status` stays the same for minutes, however long the run takes: many
ranks on few cores are slow. A run that is late while the machine stood still for half its time limit, like a paused
virtual machine, is repeated."""
import argparse
import json
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time

parser = argparse.ArgumentParser()
parser.add_argument("epa2a")
parser.add_argument("--seconds", type=float, default=60)
parser.add_argument("--runs", type=int, help="the most experiments that are not refused")
parser.add_argument("--seed", type=int, default=int(time.strftime("%Y%m%d")))
parser.add_argument("--only", action="append", default=[], help="runs that have this setting, as transport=reorder; may be repeated")
parser.add_argument("--iterations", type=int, default=100, help="the most that a run may have")
parser.add_argument("--hang", type=float, default=150, help="seconds without progress; more than the time limit of the experiments")
parser.add_argument("--verbose", action="store_true")
args = parser.parse_args()
R = random.Random(args.seed)
have = subprocess.run([args.epa2a, "list"], capture_output=True, text=True, check=True).stdout
ran = {}  # of each algorithm: runs that were not refused, and those that were
total = dict.fromkeys(["runs", "iterations", "elements", "wrong", "hangs", "refused", "failed"], 0)


stood_still = 0.0  # seconds in which not even this script ran


def watch_time():
    global stood_still
    last = time.monotonic()
    while True:
        time.sleep(.1)
        now = time.monotonic()
        stood_still += now - last if now - last > 1 else 0
        last = now


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
    experts = ranks * R.choice([1, 2, 3, 4, 5, 6, 16])
    out = [f"moe.experts={experts}", f"moe.topk={R.randint(1, min(experts, R.choice([1, 4, 12, 32])))}", f"moe.max_tokens={R.choice([1, 2, 5, 16, 33, 100])}",
           f"moe.hidden={group * R.randint(1, 12)}", f"moe.fp8_group_size={group}", f"algorithm={name}"]
    out += maybe(.4, f"routing={{kind: {R.choice(['zipf', 'lognormal'])}}}") or maybe(
        .4, f"routing={{kind: {R.choice(['hot', 'masked'])}, share: {R.choice([0, .3, .9, 1])}}}")
    out += maybe(.5, "algorithm.dispatch_dtype=" + R.choice(["fp8", "native"]))
    out += maybe(.3, "moe.dtype=f16") + maybe(.3, "expert.kind=rank")
    out += maybe(.2, "routing.weights=" + R.choice(["uniform", "signed"])) + maybe(.2, "verify.nonfinite=true")
    out += maybe(.1, "expert.output=separate") + maybe(.2, "verify.guard=true")
    if R.random() < .1:
        out = [s for s in out if not s.startswith(("moe.hidden", "expert.", "verify.nonfinite"))]
        out += [f"moe.hidden={128 * R.randint(1, 4)}", f"expert={{kind: mlp, ffn: {128 * R.randint(1, 3)}}}",
                "moe.fp8_group_size=128", *maybe(.5, "expert.values=" + R.choice(["random", "integers"])),
                *maybe(.3, "expert.weights=fp8"), *maybe(.3, "expert.activation=none")]
    if name == "ll_v2":
        out += maybe(.5, "algorithm.layout=rank", *maybe(.5, "algorithm.dedup=" + R.choice(["true", "false"])))
        out += maybe(.2, "algorithm.nontemporal=" + R.choice(["on", "off"])) + maybe(.2, "algorithm.buffers=1")
    return out


def allgather(_):
    return ["algorithm=allgather", f"allgather.max_rows={R.choice([1, 7, 64, 300])}",
            f"allgather.row_bytes={16 * R.randint(1, 200)}", "algorithm.mode=" + R.choice(["push", "pull"]),
            f"algorithm.chunks={R.choice([1, 2, 8])}"]


def ag_gemm(ranks):
    sizes = f"gemm={{m: {ranks * R.choice([1, 8, 33, 64])}, n: {ranks * 16 * R.randint(1, 6)}, k: {16 * R.randint(1, 20)}}}"
    return ["algorithm=ag_gemm_2d", sizes] + maybe(.3, "gemm.dtype=f16") + maybe(.3, "algorithm.gather=1d")


def fused(ranks):
    experts = ranks * R.randint(1, 4)
    out = ["algorithm=fused", f"moe={{max_tokens: {R.choice([1, 7, 33])}, hidden: {128 * R.randint(1, 4)}, experts: {experts}, topk: {R.randint(1, min(experts, 8))}, "
           f"fp8_group_size: 64}}", f"expert={{kind: mlp, ffn: {128 * R.randint(1, 3)}}}"]
    out += maybe(.3, "expert.values=random") + maybe(.2, "routing.weights=signed")
    return out + maybe(.3, "algorithm.dispatch_dtype=fp8") + maybe(.3, "algorithm.combine_mode=scatter") + maybe(.3, "algorithm.queue=static")


LIMIT = 60  # seconds


def draw():
    """Settings, and the exit codes that are right."""
    ranks = R.choice([1, 2, 2, 3, 4, 4, 5, 8])
    iterations, codes = min(R.choice([1, 20, 100]), args.iterations), {0}
    body = R.choice([moe] * 6 + [allgather, ag_gemm, fused])(ranks)
    out = [f"ranks={ranks}", f"seed={R.randrange(1 << 32)}", f"verify.iterations={iterations}", f"timeout={LIMIT}s"] + transport() + body
    out += [R.choice(["tokens=full", "tokens=random"])] + maybe(.25, "launcher=thread")
    out += maybe(.2, "verify.order=" + R.choice(["lockstep", "pipelined"]) if "moe.topk" in str(body) else "verify.check_every=2") + maybe(.2, "backend.workers=2")
    if "transport=shm" not in out:
        out += maybe(.3, f"ranks_per_node={R.choice([n for n in range(1, ranks + 1) if ranks % n == 0])}")
    out += maybe(.2, f"verify.straggle={R.choice([1, 5])}ms")
    kind = R.choice(["straggle"] if "launcher=thread" in out else ["stop", "straggle", "kill"]) if R.random() < .25 else None
    if kind is not None:
        out.append(f"fault={{kind: {kind}, rank: {R.randrange(ranks)}, iteration: {R.randrange(iterations)}"
                   + (", for: 30ms}" if kind != "kill" else "}"))
        codes = {5} if kind == "kill" else {0}
    return out, codes


def status(pid, *options):
    """What `epa2a status` says of the run, less what changes by itself."""
    try:
        done = subprocess.run([args.epa2a, "status", *options, str(pid)], capture_output=True, text=True, timeout=5)
    except subprocess.TimeoutExpired:
        return "status takes too long"
    return done.stdout or done.stderr


def place(pid):
    """How far each rank is."""
    try:
        ranks = json.loads(status(pid, "--json", "-"))["commands"][0]["run"]["ranks"]
    except (ValueError, LookupError, TypeError):
        return None
    return [[rank[key] for key in ("state", "stage", "iteration", "samples")] for rank in ranks]


def finish(run):
    """Waits for the end of a run; what status says if it hangs, else None. A status that does not answer says nothing of
    the run, but not for ever."""
    seen, since, answered = None, time.monotonic(), time.monotonic()
    while True:
        try:
            run.wait(min(5, args.hang / 4))
            return None
        except subprocess.TimeoutExpired:
            now, at = place(run.pid), time.monotonic()
        if now is not None and now == seen and at - since > args.hang or at - answered > 4 * args.hang:
            told = status(run.pid)
            run.kill()
            run.wait()
            return told
        if now is not None:
            answered = at
        if now is None or now != seen:
            seen, since = now, at


def attempt(settings, codes):
    kind = KIND.get(next(s for s in settings if s.startswith("algorithm=")), "moe")
    sets = [word for setting in settings for word in ("--set", setting)]
    command = f"printf {shlex.quote(BASE[kind])} > soak.yaml; {shlex.join([args.epa2a, 'verify', 'soak.yaml', *sets])}"
    total["runs"] += 1
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        run = subprocess.Popen([args.epa2a, "verify", f"{folder.name}/{kind}.yaml", *sets], stdout=out, stderr=err)
        hangs = finish(run)
        for file in out, err:
            file.seek(0)
        done = subprocess.CompletedProcess(run.args, run.returncode, out.read(), err.read())
    if hangs is not None:
        total["hangs"] += 1
        return f"no progress for {args.hang:g} s", command, hangs + done.stderr
    said = re.search(r"^(?:# checked: |verified (\d+) iterations?: )([\d,]+) elements compared, ([\d,]+) wrong", done.stdout, re.M)
    if said is not None:
        count = [int((group or "0").replace(",", "")) for group in said.groups()]
        for key, n in zip(("iterations", "elements", "wrong"), count):
            total[key] += n
    refused = done.returncode == 2 or done.returncode == 3 and "unsupported" in done.stderr
    ran.setdefault(next(s for s in settings if s.startswith("algorithm=")), [0, 0])[refused] += 1
    if refused:
        total["refused"] += 1
        return ("refused", command, done.stderr) if args.verbose else None
    if done.returncode not in codes:
        total["failed"] += 1
        return f"exit code {done.returncode}, not {sorted(codes)}", command, done.stderr
    return None


BASE = {"moe": "version: 1\\nname: soak\\nmoe: {max_tokens: 1}\\n",
        "allgather": "version: 1\\nname: soak\\nallgather: {max_rows: 1}\\n",
        "gemm": "version: 1\\nname: soak\\ngemm: {m: 8, n: 16, k: 16}\\n"}
KIND = {"algorithm=allgather": "allgather", "algorithm=ag_gemm_2d": "gemm"}
folder = tempfile.TemporaryDirectory()
for kind, text in BASE.items():
    with open(f"{folder.name}/{kind}.yaml", "w", encoding="utf-8") as file:
        file.write(text.replace("\\n", "\n"))
threading.Thread(target=watch_time, daemon=True).start()
end = time.monotonic() + args.seconds
while time.monotonic() < end and (args.runs is None or total["runs"] - total["refused"] < args.runs):
    drawn = draw()
    if not set(args.only) <= set(drawn[0]):
        continue
    for _ in range(5):
        before = stood_still, total.copy()
        found = attempt(*drawn)
        stood = stood_still - before[0]
        if found is None or stood < LIMIT / 2 or not found[0].startswith(("no progress", "exit code 4,")):
            break
        print(f"again, the machine stood still for {stood:.0f} s: {found[0]}: {found[1]}", flush=True)
        total.update(before[1])
    if found is not None:
        print(f"{found[0]}: {found[1]}\n{found[2]}", flush=True)
print(", ".join(f"{n} {key}" for key, n in total.items()) + f", seed {args.seed}")
# An algorithm whose runs were all refused shows that this script is outdated.
stale = [name for name, (well, refused) in ran.items() if well == 0 and refused > 3]
print(*(f"{name}: all refused" for name in stale), sep="\n", end="\n" if stale else "")
sys.exit(total["wrong"] + total["hangs"] + total["failed"] > 0 or stale != [])
