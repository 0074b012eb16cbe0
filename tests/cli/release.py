#!/usr/bin/env python3
"""release.py EPA2A SOURCE BUILD VERSION: the version of meson.build is the program's, the one of each .pc file, the first of
CHANGELOG.md and the first of debian/changelog."""
import json
import pathlib
import re
import subprocess
import sys

GROUPS = {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security"}  # keepachangelog.com


def main(epa2a, source, build, version):
    printed = subprocess.run([epa2a, "--version"], capture_output=True, text=True, check=True).stdout
    assert printed.startswith(f"epa2a {version} (plugin ABI "), printed
    told = json.loads(subprocess.run([epa2a, "--version", "--json"], capture_output=True, text=True, check=True).stdout)
    assert told["version"] == version, told
    for name, library in ("epa2a", "epa2a"), ("epa2a-plugin", "epa2a-kernels"):
        pc = pathlib.Path(build, f"meson-private/{name}.pc").read_text("utf-8")
        assert f"\nVersion: {version}\n" in pc and re.search(rf"^Libs: .*-l{library}\b", pc, re.M), pc

    log = pathlib.Path(source, "CHANGELOG.md").read_text("utf-8")
    releases = re.findall(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", log, re.M)
    assert releases and releases[0][0] == version, releases
    assert [r[1] for r in releases] == sorted((r[1] for r in releases), reverse=True), releases
    assert set(re.findall(r"^### (.*)$", log, re.M)) <= GROUPS, log

    debian = pathlib.Path(source, "debian/changelog").read_text("utf-8").splitlines()[0]
    assert debian.startswith(f"epa2a ({version}) "), debian
    print(version)


if __name__ == "__main__":
    main(*sys.argv[1:])
