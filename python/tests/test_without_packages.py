"""Without other packages the library works, and each command that needs some names them and their installation.
The tests hide the packages that are installed."""

import json
import os
import subprocess
import sys
import tempfile
import unittest

import support

PACKAGES = "cupy", "jax", "jinja2", "matplotlib", "ml_dtypes", "numpy", "pandas", "plotille", "scipy", "torch"
HIDE = f"import sys\nfor name in {PACKAGES}:\n    sys.modules[name] = None\n"
LOG = (
    "[rank 0] Native dispatch + combine: 2.0 GB/s, avg_t=140.00 us, min_t=1.00 us, max_t=150.00 us\n"
    "[rank 1] Native dispatch + combine: 2.0 GB/s, avg_t=150.00 us, min_t=1.00 us, max_t=160.00 us\n"
)
RANKS = """
import ctypes
import epa2a
from epa2a.arrays import Memory

def rank(comm):
    comm.barrier()
    moe = epa2a.Moe(comm, max_tokens=4, hidden=128, experts=4, topk=1)
    rows, choices = (ctypes.c_uint16 * 512)(), (ctypes.c_int32 * 4)()
    x = Memory(ctypes.addressof(rows), (4, 128), "bf16", -1, rows)
    try:
        moe.dispatch(x, Memory(ctypes.addressof(choices), (4, 1), "i32", -1, choices))
    except epa2a.Unsupported as error:
        return str(error)

if __name__ == "__main__":
    print(epa2a.spawn(rank, 2))
"""


class WithoutPackages(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name, text in ("sitecustomize.py", HIDE), ("log", LOG), ("r.json", "{}"):
            with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
                file.write(text)

    def python(self, *arguments):
        path = os.pathsep.join(filter(None, [self.folder, os.environ.get("PYTHONPATH")]))
        return subprocess.run(
            [sys.executable, *arguments],
            capture_output=True,
            text=True,
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": path},
            timeout=60,
        )

    def test_all_names_of_the_package_load(self):
        done = self.python("-c", "import epa2a, epa2a.deep_ep\nfor name in epa2a.__all__: getattr(epa2a, name)")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_ranks_run_and_arrays_are_refused_with_a_remedy(self):
        done = self.python("-c", RANKS)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout.count("install numpy"), 2, done.stdout)

    def test_import_needs_no_package(self):
        done = self.python("-m", "epa2a", "import", "log", "--json", "-")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        result = json.loads(done.stdout)["results"][0]
        self.assertEqual(result["stages"][0]["samples_ns"], [150000])

    def test_commands_name_all_packages_and_their_installation(self):
        results = "numpy pandas scipy"
        for command, packages in {
            "plot r.json": results,
            "plot r.json -o c.svg": results + " matplotlib",
            "plot --check -o c.pdf": results + " matplotlib",
            "report r.json": results + " jinja2 matplotlib",
            "report --check": results + " jinja2 matplotlib",
            "predict x.yaml": results,
            "predict x.yaml --sweep ranks=2:4 -o c.png": results + " matplotlib",
            "import log --routing r.jsonl": "numpy",
        }.items():
            with self.subTest(command):
                done = self.python("-m", "epa2a", *command.split())
                self.assertEqual((done.returncode, done.stdout), (3, ""))
                self.assertIn(packages.replace(" ", ", ") + ", which", done.stderr)
                self.assertRegex(done.stderr, r"(pip|apt-get) install \S.*\n$")
                self.assertEqual(done.stderr.count("\n"), 1)


if __name__ == "__main__":
    support.main()
