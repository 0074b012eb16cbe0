"""The interface of DeepEP V1: class Buffer with low-latency and normal mode.

    from epa2a import deep_ep

    deep_ep.install()  # `import deep_ep` in other modules now finds this package

`python -m epa2a.deep_ep SCRIPT [ARGUMENT...]` runs a script that imports deep_ep.
`python -m epa2a.deep_ep --path` prints a folder for PYTHONPATH, with the same effect on programs
that start their own processes."""

import os
import sys

from .buffer import Buffer
from .config import Config
from .event import EventHandle, EventOverlap
from .torch_or_none import index_dtype

topk_idx_t = index_dtype()
__all__ = ["Buffer", "Config", "EventHandle", "EventOverlap", "install", "topk_idx_t"]


# A folder with a module `deep_ep`, which calls install().
ALIAS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "alias")


def install():
    """Registers this package as `deep_ep`: in this process, and in processes that the module
    multiprocessing starts from now on. Fails if another deep_ep is imported already."""
    from . import utils  # noqa: F401 (registered below)

    present = sys.modules.get("deep_ep")
    if present is not None and present is not sys.modules[__name__]:
        raise ImportError(
            f"deep_ep is already imported from {getattr(present, '__file__', None)}; "
            "call epa2a.deep_ep.install() before the first import of deep_ep."
        )
    # Each module under both names: an import of deep_ep.utils must not load its classes again.
    for name, module in list(sys.modules.items()):
        if name == __name__ or name.startswith(__name__ + "."):
            sys.modules["deep_ep" + name[len(__name__) :]] = module
    if ALIAS not in sys.path:
        sys.path.insert(0, ALIAS)  # multiprocessing passes sys.path to its processes
