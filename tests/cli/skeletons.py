#!/usr/bin/env python3
"""skeletons.py MESON BUILD CC...: an installation suffices to build both skeletons, to run their contract tests, and
to run them; and the contract tests find a planted fault."""
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

from install import run, unpack

LINES = 250  # of a skeleton, at most
FAULTS = {  # kind: (old text, new text) of its skeleton
    "algorithm": [
        ("status = m->t->ops->quiet(m->t);", "status = EPA_OK;"),
        ("epoch % 2 * m->set_bytes", "0 * epoch"),
        ("m->signal + peer, m->epoch, m->timeout_ns)", "m->signal + peer, m->epoch - 1, m->timeout_ns)"),
    ],
    "transport": [
        ("+ dst, src, bytes);", "+ dst, src, bytes - 1);"),
        ("word_of(t, t->rank, 1 + i), 0,", "word_of(t, t->rank, 1 + i), 1,"),
    ],
}


class Installed:
    def __init__(self, meson, build, compiler, work):
        self.prefix, self.compiler, self.work = unpack(meson, build, work, "some/where"), compiler, work
        (self.pc,) = self.prefix.rglob("epa2a-plugin.pc")
        self.share = self.prefix / "share/epa2a"

    def ask(self, what):
        return shlex.split(run("pkg-config", f"--define-variable=prefix={self.prefix}", what, "epa2a-plugin",
                               PKG_CONFIG_PATH=str(self.pc.parent)).stdout)

    def build(self, kind, source, name):
        """A folder with the plugin, by the command of README."""
        folder = pathlib.Path(self.work, name)
        folder.mkdir()
        path = folder / f"skeleton_{kind}.c"
        path.write_text(source, encoding="utf-8")
        run(*self.compiler, "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-Wl,-z,defs",
            *self.ask("--cflags"), path, "-o", folder / f"epa2a-{kind}-mine.so", *self.ask("--libs"))
        return folder

    def check_kernels(self):
        """The functions of quant.h and gemm.h that are not inline are in the libraries of --libs."""
        path = pathlib.Path(self.work, "kernels.c")
        path.write_text("#include <epa2a/gemm.h>\n#include <epa2a/quant.h>\n#include <stdio.h>\n"
                        "int main(void) { printf(\"%s\\n\", epa_kernels_get(EPA_BF16, NULL)->isa); return 0; }\n", encoding="utf-8")
        program = pathlib.Path(self.work, "kernels")
        run(*self.compiler, "-std=gnu11", *self.ask("--cflags"), path, "-o", program, *self.ask("--libs"))
        assert run(program).stdout.strip(), "no kernels"

    def verify(self, folder, config, *more, expect=(0,)):
        run(self.prefix / "bin/epa2a", "verify", config, "--plugin-path", folder, *more, code=expect)

    def check_algorithm(self, folder, expect=(0,)):
        more = ["--timeout", "20s"]
        if 0 not in expect:
            more = ["--timeout", "2s", "--only", "ranks straggle, reorder", "--only", "full speed, reorder"]
        self.verify(folder, self.share / "contract/allgather.yaml", "--set", "algorithm=mine", *more, expect=expect)

    def check_transport(self, folder, expect=(0,)):
        """The programs, until one fails; only if one may. A fifth of their rounds: each fault is in every put or signal."""
        programs = sorted(pathlib.Path(" ".join(self.ask("--variable=contractdir"))).glob("contract-*"))
        assert len(programs) == 3, programs
        failed = 0
        for program in programs:
            for launcher in ("fork", "thread"):
                if not failed:
                    done = subprocess.run([program, folder / "epa2a-transport-mine.so", launcher], capture_output=True,
                                          text=True, check=False, timeout=100,
                                          env={**os.environ, "EPA2A_TEST_ROUNDS": "20"})
                    failed = done.returncode
        assert min(failed, 1) in expect, done.stdout + done.stderr


def main(meson, build, *compiler):
    with tempfile.TemporaryDirectory() as work:
        installed = Installed(meson, build, compiler, work)
        installed.check_kernels()
        check = {"algorithm": installed.check_algorithm, "transport": installed.check_transport}
        for kind, faults in FAULTS.items():
            source = (installed.share / f"skeleton_{kind}.c").read_text(encoding="utf-8")
            lines = source.count("\n")
            assert lines <= LINES, f"skeleton_{kind}.c has {lines} lines"
            folder = installed.build(kind, source, kind)
            check[kind](folder)
            if kind == "algorithm":
                for setting in ("algorithm.store=false", "transport=reorder"):
                    installed.verify(folder, installed.share / "configs/allgather-shm.yaml", "--set", "algorithm=mine",
                                     "--set", setting)
            else:
                for algorithm in ("ll_v2", "ll_v1", "token_flag"):
                    installed.verify(folder, installed.share / "configs/small-4.yaml", "--set", "transport=mine",
                                     "--set", f"algorithm={algorithm}")
            for i, (old, new) in enumerate(faults):
                assert source.count(old) == 1, f"{old} is there {source.count(old)} times in skeleton_{kind}.c"
                check[kind](installed.build(kind, source.replace(old, new), f"{kind}-{i}"), expect=(1, 4))
                print(f"found: {new}")
        installed.verify(folder, installed.share / "contract/moe.yaml", "--set", "algorithm=ll_v1",
                         "--only", "counts change*", "--only", "one*")


if __name__ == "__main__":
    main(*sys.argv[1:])
