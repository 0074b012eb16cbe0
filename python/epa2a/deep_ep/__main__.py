"""usage: python -m epa2a.deep_ep SCRIPT [ARGUMENT...]
       python -m epa2a.deep_ep --path

Runs a script that imports deep_ep, or prints a folder for PYTHONPATH in which programs find deep_ep."""

import os
import runpy
import sys

from epa2a import deep_ep


def main():
    arguments = sys.argv[1:]
    if arguments == ["--path"]:
        print(deep_ep.ALIAS)
        return 0
    if not arguments or arguments[0].startswith("-"):
        asked = arguments and arguments[0] in ("-h", "--help")
        print(__doc__, file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    sys.argv[:] = arguments
    sys.path[0] = os.path.dirname(os.path.abspath(arguments[0]))
    deep_ep.install()
    runpy.run_path(arguments[0], run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
