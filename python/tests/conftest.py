"""Tests of the package run against its source, `python -m pytest python/tests`, or with EPA2A_INSTALLED=1
against the package that is installed."""

import support  # noqa: F401
