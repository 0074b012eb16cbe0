"""Programs find epa2a.deep_ep as deep_ep, and its Config checks the numbers."""

import importlib.util
import os
import subprocess
import sys
import tempfile
import unittest

import support
from epa2a import deep_ep

# A process of multiprocessing and the main module use the same classes.
SCRIPT = """
import multiprocessing, sys
import deep_ep
from deep_ep.utils import EventOverlap

def other(name):
    import deep_ep
    assert deep_ep.__name__ == name, deep_ep

if __name__ == "__main__":
    assert EventOverlap is deep_ep.EventOverlap
    process = multiprocessing.get_context("spawn").Process(target=other, args=("epa2a.deep_ep",))
    process.start()
    process.join()
    print(deep_ep.__name__, sys.argv[1:], process.exitcode)
"""


def run(*arguments, **environment):
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, env=os.environ | environment
    )
    return done.returncode, done.stdout, done.stderr


class Names(unittest.TestCase):
    def test_install_registers_the_module(self):
        deep_ep.install()
        deep_ep.install()
        import deep_ep as installed
        from deep_ep.utils import EventHandle, EventOverlap

        self.assertIs(installed, deep_ep)
        self.assertIsNotNone(importlib.util.find_spec("deep_ep"))
        self.assertIs(EventHandle, deep_ep.EventHandle)
        self.assertIs(EventOverlap, deep_ep.EventOverlap)

    def test_another_module_of_the_name_is_an_error(self):
        code = "import sys; sys.modules['deep_ep'] = sys; from epa2a import deep_ep; deep_ep.install()"
        status, _, errors = run("-c", code)
        self.assertEqual(status, 1)
        self.assertIn("already imported", errors)

    def test_scripts_run_unchanged(self):
        with tempfile.TemporaryDirectory() as folder:
            script = os.path.join(folder, "script.py")
            with open(script, "w") as file:
                file.write(SCRIPT)
            wanted = "epa2a.deep_ep ['a', '-b'] 0\n"
            self.assertEqual(run("-m", "epa2a.deep_ep", script, "a", "-b"), (0, wanted, ""))
            path = run("-m", "epa2a.deep_ep", "--path")[1].strip()
            path = os.pathsep.join(filter(None, [path, os.environ.get("PYTHONPATH")]))
            self.assertEqual(run(script, "a", "-b", PYTHONPATH=path), (0, wanted, ""))

    def test_usage(self):
        self.assertEqual(run("-m", "epa2a.deep_ep")[:2], (2, ""))
        status, text, _ = run("-m", "epa2a.deep_ep", "--help")
        self.assertEqual(status, 0)
        self.assertIn("usage: python -m epa2a.deep_ep", text)


class Events(unittest.TestCase):
    def test_events_of_hosts_have_no_effect(self):
        with deep_ep.EventOverlap(deep_ep.EventHandle()) as event:
            event.current_stream_wait()
        with deep_ep.EventOverlap() as event:
            self.assertRaises(ValueError, event.current_stream_wait)


class Configs(unittest.TestCase):
    def test_numbers_are_checked(self):
        config = deep_ep.Config(num_sms=24, num_max_nvl_chunked_send_tokens=8)
        self.assertEqual(config.num_sms, 24)
        self.assertEqual(config.num_max_nvl_chunked_send_tokens, 8)
        self.assertEqual(config.get_nvl_buffer_size_hint(14336, 8), 0)
        self.assertEqual(config.get_rdma_buffer_size_hint(14336, 16), 0)
        for wrong in ((20, 0), (20, 256, 256), (-2,), (20, 6, 256, 6, 6), (20.5,)):
            with self.assertRaises(ValueError):
                deep_ep.Config(*wrong)


if __name__ == "__main__":
    support.main()
