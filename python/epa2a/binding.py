"""The compiled module of the package, python/binding: it takes a third of the CPU time of a call of Moe.

Without the module every call takes the Python code, with the same results and exceptions. $EPA2A_BINDING is
the path of the module in place of the installed one, or "none"."""

import importlib.machinery
import importlib.util
import os

NAME = "epa2a._binding"


def _load():
    """Returns the module; None: it is not installed, or is for another interpreter."""
    path = os.environ.get("EPA2A_BINDING")
    if path == "none":
        return None
    try:
        if not path:
            return importlib.import_module(NAME)
        spec = importlib.util.spec_from_file_location(NAME, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module
    except ImportError:
        if path:
            raise
        return None


module = _load()
