"""Runs examples/dispatch_combine.py, whose assertions compare the sums."""

import os
import runpy

import support

try:
    import numpy
except ImportError as error:
    support.skip(error)
runpy.run_path(os.path.join(support.ROOT, "..", "examples", "dispatch_combine.py"), run_name="__main__")
