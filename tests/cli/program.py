#!/usr/bin/env python3
"""program.py MESON BUILD CC...: an installation under DESTDIR, moved elsewhere, suffices to build the examples in C
by the command of their comments, and to run them; those with MPI only where mpicc and mpirun are."""
import pathlib
import shlex
import shutil
import sys
import tempfile

from install import run, unpack

GOOD = "4 tokens, 0 wrong outputs"


def flags(prefix):
    (pc,) = prefix.rglob("epa2a.pc")
    given = run("pkg-config", f"--define-variable=prefix={prefix}", "--cflags", "--libs", "epa2a", PKG_CONFIG_PATH=str(pc.parent))
    return shlex.split(given.stdout), str(pc.parent.parent)


def main(meson, build, *compiler):
    with tempfile.TemporaryDirectory() as work:
        prefix = unpack(meson, build, work, "some/where") # pkg-config does not quote spaces
        given, library = flags(prefix)
        ways = {"moe_layer": (compiler, [], 2)}
        if shutil.which("mpicc") and shutil.which("mpirun"):
            ways["moe_layer_mpi"] = ["mpicc"], ["mpirun", "--oversubscribe", "-np", "4"], 4
        for name, (command, launcher, ranks) in ways.items():
            program = pathlib.Path(work, name)
            run(*command, "-Wall", "-Wextra", "-Werror", prefix / f"share/epa2a/examples/{name}.c", "-o", program, *given)
            done = run(*launcher, program, LD_LIBRARY_PATH=library, OMPI_ALLOW_RUN_AS_ROOT="1",
                       OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
            assert sorted(done.stdout.splitlines()) == [f"rank {rank}: {GOOD}" for rank in range(ranks)], done
            print(f"{name}: {ranks} ranks")
        # The library names the folder without plugins.
        (folder,) = (path for path in prefix.rglob("epa2a/*") if path.is_dir() and list(path.glob("*.so")))
        shutil.rmtree(folder)
        done = run(pathlib.Path(work, "moe_layer"), code=1, LD_LIBRARY_PATH=library)
        assert str(folder) in done.stderr, done


if __name__ == "__main__":
    main(*sys.argv[1:])
