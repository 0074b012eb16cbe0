"""The console script runs the program of the package, or the program of the system."""

import os
import subprocess
import sys
import tempfile
import unittest

import support

MAIN = "from epa2a.program import main; main()"


def run(*arguments, path):
    return subprocess.run(
        [sys.executable, "-c", MAIN, *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )


class Program(unittest.TestCase):
    def test_runs_the_program_on_path_with_its_arguments_and_exit_code(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, "epa2a")
            with open(program, "w", encoding="utf-8") as file:
                file.write('#!/bin/sh\necho "$@"\nexit 7\n')
            os.chmod(program, 0o755)
            done = run("bench", "a b", path=folder)
        self.assertEqual((done.returncode, done.stdout), (7, "bench a b\n"))

    def test_missing_program_is_an_error_with_a_remedy(self):
        done = run("bench", path="")
        self.assertEqual(done.returncode, 1)
        self.assertIn("install", done.stderr)


if __name__ == "__main__":
    if os.path.exists(os.path.join(support.ROOT, "epa2a", "bin", "epa2a")):
        print("skipped: the package contains the program")
        sys.exit(support.SKIPPED)
    support.main()
