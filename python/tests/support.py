"""Shared code of the tests: the tested package, the exit status of skipped tests, and ports.

The tests use the package of the source, or with EPA2A_INSTALLED=1 the package that Python finds."""

import os
import socket
import sys
import unittest

SKIPPED = 77


def skip(reason):
    """Ends a test file: pytest goes on with the next file, and a script exits with 77."""
    if "pytest" in sys.modules:
        raise unittest.SkipTest(reason)
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
if not os.environ.get("EPA2A_INSTALLED"):  # commands that the tests start find the package of the source, too
    sys.path.insert(0, ROOT)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [ROOT, os.environ.get("PYTHONPATH")]))
import epa2a


def has_hash():
    """Returns true if ranks can authenticate each other: by OpenSSL, or by the hash of the kernel."""
    if os.environ.get("EPA2A_OPENSSL") != "0":
        return True
    try:
        with socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET) as s:
            s.bind(("hash", "hmac(sha256)"))
        return True
    except OSError:
        return False


def reserve_port():
    """Returns a bound socket, which keeps its port from other programs. Rank 0 can listen there, since both set
    SO_REUSEADDR."""
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    return reserved


def main():
    unittest.main(verbosity=2)
