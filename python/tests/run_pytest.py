"""run_pytest.py TEST.py [MODULE[>=VERSION]...]: runs a test by pytest. Exits with 77 if pytest or a module is
missing or too old."""

import importlib
import re
import sys

SKIPPED = 77


def numbers(version):
    return [int(number) for number in re.findall(r"\d+", version)]


def main(test, *modules):
    for need in ("pytest", *modules):
        name, _, least = need.partition(">=")
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            print(f"skipped: the test needs {need}: {error}")
            return SKIPPED
        if least and numbers(module.__version__) < numbers(least):
            print(f"skipped: the test needs {need}; version {module.__version__} is installed")
            return SKIPPED
    import pytest

    return int(pytest.main(["-q", "-ra", "-p", "no:cacheprovider", test]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
