"""The console script runs the program of the package, else the program of the system. The tests run copies of
the package, since an installed wheel contains a program."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest

import support
from support import epa2a

MAIN = "from epa2a.program import main; main()"


def write_program(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, 0o755)
    return path


class Program(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.site, self.path = os.path.join(folder.name, "site"), os.path.join(folder.name, "path")
        without = shutil.ignore_patterns("__pycache__", "bin", "lib*", "*.so")
        shutil.copytree(os.path.dirname(epa2a.__file__), os.path.join(self.site, "epa2a"), ignore=without)

    def run_script(self, *command, path=None):
        """Runs a command of Python with the copy of the package."""
        environment = {**os.environ, "PATH": self.path if path is None else path, "PYTHONPATH": self.site}
        environment.pop("EPA2A_PYTHON", None)
        return subprocess.run(
            [sys.executable, *command], capture_output=True, text=True, cwd=self.site, env=environment, timeout=60
        )

    def test_runs_the_program_on_path_with_its_arguments_and_exit_code(self):
        write_program(os.path.join(self.path, "epa2a"), '#!/bin/sh\necho "$@"\necho $EPA2A_PYTHON\nexit 7\n')
        done = self.run_script("-c", MAIN, "bench", "a b")
        self.assertEqual((done.returncode, done.stdout), (7, f"bench a b\n{sys.executable}\n"))

    def test_program_of_the_package_precedes_the_program_on_path(self):
        write_program(os.path.join(self.path, "epa2a"), "#!/bin/sh\necho path\n")
        write_program(os.path.join(self.site, "epa2a", "bin", "epa2a"), "#!/bin/sh\necho package\n")
        self.assertEqual(self.run_script("-c", MAIN).stdout, "package\n")

    def test_missing_program_is_an_error_with_a_remedy(self):
        done = self.run_script("-c", MAIN, "bench", path="")
        self.assertEqual(done.returncode, 1)
        self.assertIn("install", done.stderr)

    def test_script_does_not_run_itself(self):
        script = write_program(os.path.join(self.path, "epa2a"), f"#!{sys.executable}\n{MAIN}\n")
        done = self.run_script(script, "bench")
        self.assertEqual(done.returncode, 1)
        self.assertIn("install", done.stderr)


if __name__ == "__main__":
    support.main()
