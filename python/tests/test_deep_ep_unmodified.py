#!/usr/bin/env python3
"""test_deep_ep_unmodified.py [--cuda] test_low_latency | test_intranode [OPTION...]: this test of DeepEP passes
with epa2a on 4 processes in host memory, or with --cuda on 2 GPUs. The options are those of DeepEP's test.
--cuda without a test runs all commands of CUDA_COMMANDS.

EPA2A_DEEPEP is a checkout of DeepEP: V1 has the tests in the folder tests, V2 in tests/legacy. GPUs run the
files without a change. Hosts run copies with these substitutions: cuda -> cpu; nccl -> gloo, whose allgather
needs an output with the dimensions of the input; and no measurements, which need events and the profiler of
CUDA. The hash of the original file is printed."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
from importlib import util

from support import skip

# Patterns and replacements of each test. Each pattern must have one place.
SUBSTITUTIONS = {
    "test_low_latency": [
        (r"all_gather_into_tensor\(all_topk_idx,", "all_gather_into_tensor(all_topk_idx.flatten(0, 1),"),
        (r"    # noinspection PyShadowingNames\n    def large_gemm_with_hook.*?(?=    return hash_value\n)", ""),
    ],
    "test_intranode": [
        (r"^    t = bench\(lambda: buffer.get_dispatch_layout\(topk_idx, num_experts\)\)\[0\]", "    t = 0"),
        (r"^    # Tune dispatch performance.*?(?=^# noinspection PyUnboundLocalVariable)", ""),
    ],
}
OPTIONS = {
    "test_low_latency": "--num-processes 4 --num-experts 32 --num-tokens 32 --hidden 2048",
    "test_intranode": "--num-processes 4 --num-experts 32 --num-tokens 64 --hidden 1024",
}
CUDA_COMMANDS = ["test_low_latency", "test_low_latency --use-logfmt", "test_intranode"]
# A helper passes a device to torch, which refuses CPUs before 2.15.
NO_DEVICE = [(r"^    if 'device_id' in sig.parameters:$", "    if False:")]
# V2 has the helpers in its package. Their import needs the name of the extension only.
NAMES = """import deep_ep.utils
deep_ep.utils.__path__.append({folder!r})
deep_ep._C = sys.modules["deep_ep._C"] = types.ModuleType("deep_ep._C")
"""
HELPERS = "import sys, types, deep_ep\n" + NAMES
# The module deep_ep of a run on GPUs. Processes that the test starts must find this module, not the alias.
MODULE = """import sys, types
from epa2a import deep_ep
del sys.modules["deep_ep"]
deep_ep.install()
sys.path.remove(deep_ep.ALIAS)
""" + NAMES


def print_hash(path):
    with open(path, "rb") as file:
        print(f"{hashlib.sha256(file.read()).hexdigest()}  {path}", flush=True)


def folder_of_tests(checkout):
    """Returns the folder of the tests: tests/legacy in V2, tests in V1."""
    legacy = os.path.join(checkout, "tests", "legacy")
    return legacy if os.path.isdir(legacy) else os.path.join(checkout, "tests")


def copy_on_hosts(source, folder, substitutions=()):
    """Copies a file with the substitutions and returns the path of the copy."""
    with open(source) as file:
        text = file.read().replace("cuda", "cpu").replace("nccl", "gloo")
    for pattern, replacement in substitutions:
        text, count = re.subn(pattern, lambda _: replacement, text, flags=re.DOTALL | re.MULTILINE)
        if count != 1:
            sys.exit(f"{source} has {count} places for the substitution {pattern!r}, but must have one")
    path = os.path.join(folder, os.path.basename(source))
    with open(path, "w") as copy:
        copy.write(text)
    return path


def copy_tests(checkout, folder):
    """Copies the tests, which import each other, and their helpers."""
    tests, header = folder_of_tests(checkout), HELPERS.format(folder=os.path.join(folder, "helpers"))
    if os.path.basename(tests) == "legacy":
        os.mkdir(os.path.join(folder, "helpers"))
        for name in ("comm", "envs", "math", "testing"):
            helper = os.path.join(checkout, "deep_ep", "utils", name + ".py")
            copy_on_hosts(helper, os.path.join(folder, "helpers"), NO_DEVICE if name == "envs" else ())
    else:
        header = "import deep_ep\n"
        copy_on_hosts(os.path.join(tests, "utils.py"), folder, NO_DEVICE)
    for name, substitutions in SUBSTITUTIONS.items():
        source = os.path.join(tests, name + ".py")
        copy_on_hosts(source, folder, [(r"^import deep_ep\n", header), *substitutions])
        print_hash(source)


def finish(command, status):
    print(f"{command}: " + ("passed" if status == 0 else f"failed with exit status {status}"), flush=True)
    return status


def run_on_hosts(checkout, name, options):
    with tempfile.TemporaryDirectory() as folder:
        copy_tests(checkout, folder)
        command = [sys.executable, "-m", "epa2a.deep_ep", os.path.join(folder, name + ".py")]
        # The helpers of V2 have decorators of torch.compile, which would call a compiler.
        settings = {"OMP_NUM_THREADS": "1", "TORCHDYNAMO_DISABLE": "1"}
        done = subprocess.run([*command, *OPTIONS[name].split(), *options], env=os.environ | settings)
    return finish(name, done.returncode)


def run_on_gpus(checkout, name, options):
    """Runs the file of DeepEP itself on 2 GPUs."""
    path = os.path.join(folder_of_tests(checkout), name + ".py")
    print_hash(path)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "deep_ep.py"), "w") as module:
            module.write(MODULE.format(folder=os.path.join(checkout, "deep_ep", "utils")))
        places = [folder, *filter(None, [os.environ.get("PYTHONPATH")])]
        done = subprocess.run(
            [sys.executable, path, "--num-processes", "2", *options],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        )
    return finish(" ".join([name, *options]), done.returncode)


def main():
    arguments = sys.argv[1:]
    on_gpus = "--cuda" in arguments
    if on_gpus:
        arguments.remove("--cuda")
    name = arguments[0] if arguments else None
    if name not in SUBSTITUTIONS and (name or not on_gpus):
        sys.exit(__doc__)
    checkout = os.environ.get("EPA2A_DEEPEP")
    if not checkout:
        skip("EPA2A_DEEPEP names no checkout of DeepEP")
    if util.find_spec("torch") is None:
        skip("torch is not installed")
    checkout = os.path.abspath(checkout)
    if not on_gpus:
        return run_on_hosts(checkout, name, arguments[1:])
    import torch

    if torch.cuda.device_count() < 2:
        skip("the test needs 2 GPUs")
    commands = [arguments] if name else [command.split() for command in CUDA_COMMANDS]
    statuses = [run_on_gpus(checkout, command[0], command[1:]) for command in commands]
    return int(any(statuses))


if __name__ == "__main__":
    sys.exit(main())
