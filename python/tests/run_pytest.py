"""run_pytest.py TEST.py [MODULE...]: runs a test by pytest. Exits with 77 if pytest or a module is missing."""

import importlib
import sys

SKIPPED = 77


def main(test, *modules):
    for name in ("pytest", *modules):
        try:
            importlib.import_module(name)
        except ImportError as error:
            print(f"skipped: the test needs {name}: {error}")
            return SKIPPED
    import pytest

    return int(pytest.main(["-q", "-ra", "-p", "no:cacheprovider", test]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
