#!/usr/bin/env python3
"""install.py MESON BUILD PLUGIN...: an installation under DESTDIR, moved elsewhere, has all plugins of the build
(names of their files) and runs; without them, or without the Python package, it says where they should be."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ENV = {name: value for name, value in os.environ.items() if name not in ("EPA2A_PLUGIN_PATH", "DESTDIR")}


def run(*command, code=0, **more):
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**ENV, **more}, timeout=200)
    if done.returncode not in (code if isinstance(code, tuple) else (code,)):
        sys.exit(f"FAIL: {command} ends with {done.returncode}, not {code}:\n{done.stdout}{done.stderr}")
    return done


def unpack(meson, build, work, folder="some where/else"):
    """Makes an installation like a package, then unpacks it in another user's folder."""
    run(meson, "install", "-C", build, "--no-rebuild", "--quiet", "--destdir", f"{work}/stage")
    (program,) = pathlib.Path(work, "stage").rglob("bin/epa2a")
    prefix = pathlib.Path(work, folder)
    prefix.parent.mkdir()
    program.parent.parent.rename(prefix)
    shutil.rmtree(f"{work}/stage")
    return prefix


def main(meson, build, *names):
    with tempfile.TemporaryDirectory() as work:
        prefix = unpack(meson, build, work)
        epa2a, config = prefix / "bin/epa2a", prefix / "share/epa2a/configs/small.yaml"

        listed = run(epa2a, "list").stdout
        folder = pathlib.Path(json.loads(run(epa2a, "--version", "--json", "-").stdout)["plugin_folder"])
        assert prefix in folder.parents, folder
        unfolded = re.sub(r"\n +", " ", listed)  # the path has a space, where list may fold it
        for name in names:
            assert str(folder / name) in unfolded, (folder / name, listed)
        assert "cannot be loaded" not in listed, listed
        run(epa2a, "verify", config)
        # Configurations have names, independent of the prefix.
        named = run(epa2a, "config", "check", "small", "ll_v2-shm").stdout
        assert named == "".join(f"{config.parent / name}.yaml: good\n" for name in ("small", "ll_v2-shm")), named
        assert f"no FILE given; using {config}" in run(epa2a, "verify").stderr
        models = json.loads(run(epa2a, "list", "models", "--json", "-").stdout)["models"]
        assert models and all(prefix in pathlib.Path(model["file"]).parents for model in models), models
        run(epa2a, "verify", config, "--model", "qwen3-30b-a3b", "--set", "verify.iterations=2")
        link = pathlib.Path(work, "link")  # as from a folder on PATH
        link.symlink_to(epa2a)
        assert run(link, "list").stdout == listed

        log = prefix / "deepep.log"
        log.write_text("[rank 0] Dispatch + combine bandwidth: 1 GB/s, avg_t=137.50 us, min_t=1 us, max_t=2 us\n")
        assert "137.50" in run(epa2a, "import", log).stdout

        # A tree that was copied in part.
        package = prefix / "share/epa2a/python"
        shutil.rmtree(package / "epa2a")
        says = run(epa2a, "import", log, code=3)
        assert str(package) in says.stderr and "pip wheel" in says.stderr and not says.stdout, says
        shm = folder / "epa2a-transport-shm.so"
        for file in set(folder.iterdir()) - {shm}:
            file.unlink()
        says = run(epa2a, "verify", config, code=2).stderr
        assert "there is no algorithm 'll_v2'" in says, says
        shm.unlink()
        for why in ("no plugins in", "there is no plugin folder"):
            done = run(epa2a, "list", code=3)
            assert "built in" in done.stdout and done.stderr == f"epa2a: {why} {folder}\n", done
            says = run(epa2a, "verify", config, code=3).stderr
            assert f"there is no transport 'shm': {why} {folder}\n" in says, says
            if folder.exists():
                folder.rmdir()
    print(f"{len(names)} plugins")


if __name__ == "__main__":
    main(*sys.argv[1:])
