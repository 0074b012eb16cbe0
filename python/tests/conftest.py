"""Tests of the package run against its source: python -m pytest python/tests"""

import os
import pathlib
import sys

SOURCE = str(pathlib.Path(__file__).resolve().parents[1])
sys.path.insert(0, SOURCE)
# Commands that the tests start find the package, too.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (SOURCE, os.environ.get("PYTHONPATH"))))
