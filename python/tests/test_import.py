"""The import loads nothing and is fast."""

import subprocess
import sys
import unittest

import support
from support import epa2a

CHECK = """
import sys
before = set(sys.modules)
import epa2a
print(sorted(m for m in set(sys.modules) - before if not m.startswith("epa2a")))
"""


def run(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.strip()


class Import(unittest.TestCase):
    def test_import_loads_no_other_module(self):
        self.assertEqual(run(CHECK), "[]")

    def test_import_takes_less_than_300_ms(self):
        # CPU time: other processes of the machine do not count.
        code = "import time; a = time.process_time(); import epa2a; print(time.process_time() - a)"
        self.assertLess(min(float(run(code)) for _ in range(3)), 0.3)

    def test_modules_load_no_framework(self):
        code = "import epa2a, sys; [getattr(epa2a, n) for n in epa2a.__all__]; print(sorted("
        code += "{'torch', 'numpy', 'cupy', 'jax', 'ml_dtypes'} & set(sys.modules)))"
        self.assertEqual(run(code), "[]")

    def test_missing_library_is_an_error_with_a_remedy(self):
        code = "import epa2a\ntry: epa2a.build()\nexcept epa2a.Unsupported as e: print(e)"
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            env={**__import__("os").environ, "EPA2A_LIBRARY": "/nonexistent/libepa2a.so.0"},
        )
        self.assertIn("/nonexistent/libepa2a.so.0", done.stdout)
        self.assertIn("EPA2A_LIBRARY", done.stdout)

    def test_modules_hide_no_name(self):
        code = "import epa2a, importlib, sys; [importlib.import_module('epa2a.' + m) for m in "
        code += "set(epa2a._homes.values())]; print([n for n in epa2a.__all__ if type(getattr(epa2a, n)) is type(sys)])"
        self.assertEqual(run(code), "[]")

    def test_unknown_names_are_attribute_errors(self):
        with self.assertRaises(AttributeError):
            epa2a.Nothing


if __name__ == "__main__":
    support.main()
