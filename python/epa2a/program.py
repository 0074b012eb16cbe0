"""The console script `epa2a`: the program of the wheel. A package without the program runs the program
of the system."""

import os
import shutil
import sys


def path():
    """Returns the path of the program, or None."""
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "epa2a")
    if os.path.exists(own):
        return own
    # The script itself has the name of the program.
    script = os.path.realpath(sys.argv[0])
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        found = shutil.which("epa2a", path=folder) if folder else None
        if found is not None and os.path.realpath(found) != script:
            return found
    return None


def main():
    program = path()
    if program is None:
        sys.exit(
            "epa2a: the package contains no program, and no program 'epa2a' is on PATH; install a wheel, "
            "or the program by `meson install`"
        )
    # Commands of the package run in this Python.
    os.environ.setdefault("EPA2A_PYTHON", sys.executable)
    os.execv(program, [program, *sys.argv[1:]])
