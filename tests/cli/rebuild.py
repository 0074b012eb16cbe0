#!/usr/bin/env python3
"""rebuild.py MESON SOURCE: a build without a target builds the target `program`, a second build of an unchanged tree has
nothing to do, and the header with the commit follows edits and commits. .ci/run compares the second build of all targets."""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

AUTHOR = {f"GIT_{who}_{what}": value for who in ("AUTHOR", "COMMITTER")
          for what, value in (("NAME", "Tester"), ("EMAIL", "tester@localhost"))}


def main(meson, source):
    if shutil.which("git") is None or shutil.which("ninja") is None:
        print("git or ninja is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name).resolve()
        # A hook of git sets GIT_DIR, which precedes the folder of -C.
        outside = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
        env = {**outside, **AUTHOR, "GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(work)}
        tree = work / "the tree"
        build = work / "build"

        def run(*command):
            done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
            assert done.returncode == 0, f"{command}:\n{done.stdout}{done.stderr}"
            return done.stdout

        def git(*command):
            return run("git", "-C", tree, *command).strip()

        def steps_of(*targets):
            return re.findall(r"^\[\d+/\d+\] (.*)", run("ninja", "-C", build, "-n", *targets), re.M)

        def compare_targets():
            steps = steps_of()
            assert sorted(steps) == sorted(steps_of("program")), steps
            assert "Linking target src/epa2a" in steps, steps
            tests = [step for step in steps_of("all") if "tests/unit" in step]
            assert tests and not set(tests) & set(steps), tests

        def build_header(expected):
            run("ninja", "-C", build, "src/tool/git_id.h")
            text = (build / "src/tool/git_id.h").read_text("utf-8")
            assert re.search(r'^#define EPA2A_GIT "(.*)"$', text, re.M)[1] == expected, (text, expected)
            again = run("ninja", "-C", build, "-n", "-d", "explain", "src/tool/git_id.h")
            assert "no work to do" in again, again

        shutil.copytree(source, tree, symlinks=True, ignore=lambda folder, names: [
            name for name in names if name == ".git" or pathlib.Path(folder, name, "meson-info").exists()])
        run(meson, "setup", build, tree, "-Dauto_features=disabled", "-Dtests=disabled")
        build_header("")
        git("init", "-q")
        git("add", "-A")
        git("commit", "-qm", "first")
        run(meson, "setup", "--wipe", build, tree, "-Dtests=enabled")
        compare_targets()
        first = git("rev-parse", "--short=12", "HEAD")
        build_header(first)
        made = (build / "src/tool/git_id.h").stat().st_mtime_ns
        (tree / "README.md").touch()
        build_header(first)
        assert (build / "src/tool/git_id.h").stat().st_mtime_ns == made, "the unchanged header was written again"
        with open(tree / "README.md", "a", encoding="utf-8") as readme:
            readme.write("\n")
        build_header(f"{first}-dirty")
        git("commit", "-qam", "second")
        build_header(git("rev-parse", "--short=12", "HEAD"))
        git("pack-refs", "--all")
        git("reset", "-q", "--hard", first)
        build_header(first)


if __name__ == "__main__":
    main(*sys.argv[1:])
