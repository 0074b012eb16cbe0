#!/usr/bin/env python3
"""no_pkg_config.py MESON SOURCE: a library without a pkg-config file counts as missing. The CMake file, which meson
would try next, may name a folder as the library (UCX 1.13 does), so that the link fails."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

MUST = ["yaml-0.1", "jansson"]
MAY = ["hwloc", "ucx", "libibverbs", "cmocka"]


def main(meson, source):
    with tempfile.TemporaryDirectory() as name:
        work = pathlib.Path(name)
        only = work / "pkgconfig"
        only.mkdir()
        for name in MUST:
            folder = subprocess.run(["pkg-config", "--variable=pcfiledir", name], capture_output=True, text=True,
                                    check=True).stdout.strip()
            (only / f"{name}.pc").symlink_to(pathlib.Path(folder, f"{name}.pc"))
        for name in MAY:
            package = work / "lib/cmake" / name
            package.mkdir(parents=True)
            variables = {f"{name}_FOUND": "TRUE", f"{name}_VERSION": "99", f"{name.upper()}_LIBRARIES": work,
                         f"{name.upper()}_INCLUDE_DIRS": work}
            (package / f"{name}-config.cmake").write_text(
                "".join(f'set({key} "{value}")\n' for key, value in variables.items()))
        done = subprocess.run(
            [meson, "setup", work / "build", source, f"-Dcmake_prefix_path={work}", "-Dcuda=disabled",
             "-Dmpi=disabled"],
            capture_output=True, text=True, check=False, env={**os.environ, "PKG_CONFIG_LIBDIR": str(only)})
        assert done.returncode == 0, done.stdout + done.stderr
        found = {dependency["name"]: dependency["link_args"] for dependency in json.loads(subprocess.run(
            [meson, "introspect", "--dependencies", work / "build"], capture_output=True, text=True,
            check=True).stdout)}
        assert set(MUST) <= set(found), found
        assert not set(MAY) & set(found), found


if __name__ == "__main__":
    main(*sys.argv[1:])
