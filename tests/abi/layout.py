#!/usr/bin/env python3
"""Checks the layout of all structs of the public headers, and the values of their enums, against one EPA_ABI.

layout.py check CC HEADERS LAYOUT: LAYOUT, tests/abi/layout.txt, contains this number and the digest of the output of
`show`. layout.py show CC HEADERS: prints the size of each struct, the offset of each member, and each constant.
layout.py compile CC HEADERS WITH...: each header compiles alone with the command WITH, and all together with static
assertions of the layout that CC produces.

layout.py update: rewrites LAYOUT after a change of a struct, and raises EPA_ABI in plugin.h and `abi` in meson.build
if LAYOUT had that number already. --again keeps the number, as long as no plugins with it exist."""
import concurrent.futures
import hashlib
import pathlib
import re
import subprocess
import sys
import tempfile

SAME = """#ifdef __cplusplus
#define _Static_assert static_assert
#endif
#define SAME(a, b) _Static_assert((a) == (b), #a);
"""


def public(headers, *ends):
    return sorted(path for path in pathlib.Path(headers, "epa2a").rglob("*") if path.suffix in ends)


def including(headers, paths):
    return "".join(f"#include <{path.relative_to(headers)}>\n" for path in paths)


def entries(cc, headers, source):
    """(depth, tag, attributes) of all that the compiler notes for a debugger."""
    with tempfile.TemporaryDirectory() as work:
        out = pathlib.Path(work, "x.o")
        subprocess.run([*cc, "-std=c11", "-D_GNU_SOURCE", "-gdwarf-4", "-fno-eliminate-unused-debug-types", "-w",
                        f"-I{headers}", "-xc", "-c", "-", "-o", out], check=True, text=True,
                       input=source)
        text = subprocess.run(["readelf", "--debug-dump=info", out], capture_output=True, text=True, check=True).stdout
    for part in re.split(r"\n <(?=[0-9a-f]+><)", text)[1:]:
        depth, at, tag = re.match(r"([0-9a-f]+)><([0-9a-f]+)>: Abbrev Number: \d+(?: \(DW_TAG_(\w+)\))?", part).groups()
        found = dict(re.findall(r"DW_AT_(\w+) *: (?:\(.*?\): |\(.*?\) )*<?([^>\n]*?)>? *(?:\n|$)", part))
        yield int(depth, 16), at, tag, found


class Entry:
    def __init__(self, tag, found):
        self.tag, self.found, self.children = tag, found, []

    def name(self):
        return self.found.get("name")


def tree(cc, headers, source):
    by_place, stack = {}, []
    for depth, at, tag, found in entries(cc, headers, source):
        entry = Entry(tag, found)
        by_place[at] = entry
        del stack[depth:]
        if stack and stack[-1]:
            stack[-1].children.append(entry)
        stack.append(entry if tag else None)
    return by_place


def members(by_place, entry, before="", base=0):
    """Yields (name, offset) of members; members of an unnamed struct follow the member that contains it."""
    for child in entry.children:
        if child.tag != "member" or not child.name():
            continue
        at = base + int(child.found.get("data_member_location", "0"), 0)  # a union's have none
        yield before + child.name(), at
        of = by_place[child.found["type"].removeprefix("0x")]
        if of.tag in ("structure_type", "union_type") and not of.name():
            yield from members(by_place, of, f"{before}{child.name()}.", at)


def lines_of(cc, headers, source, prefix):
    """A line for each struct and member, and each constant, whose name begins with the prefix."""
    by_place, found = tree(cc, headers, source), set()
    for e in by_place.values():
        name = e.name() or ""
        if e.tag == "structure_type" and name.startswith(prefix) and "byte_size" in e.found:
            found.add(f"sizeof(struct {name}) == {int(e.found['byte_size'], 0)}")
            found |= {f"offsetof(struct {name}, {member}) == {at}" for member, at in members(by_place, e)}
        elif e.tag == "enumerator" and name.startswith(prefix.upper()):
            found.add(f"{name} == {int(e.found['const_value'], 0)}")
    return found


def layout(cc, headers):
    """A line for each expression with its value."""
    abi = re.search(r"#define EPA_ABI (\d+)", pathlib.Path(headers, "epa2a/plugin.h").read_text("utf-8"))[1]
    found = lines_of(cc, headers, including(headers, public(headers, ".h")), "epa_") | {f"EPA_ABI == {abi}"}
    assert len(found) > 300, len(found)
    return sorted(found)


def digest(lines):
    number = next(line.split()[-1] for line in lines if line.startswith("EPA_ABI "))
    return f"EPA_ABI {number}: {hashlib.sha256(chr(10).join(lines).encode()).hexdigest()}\n"


def check(cc, headers, path):
    have, now = pathlib.Path(path).read_text("utf-8"), digest(layout([cc], headers))
    if have == now:
        return 0
    print(f"{path} has\n{have}and the public headers are\n{now}What `layout.py show` prints, here and of a checkout before, says "
          "what has changed. Then run tests/abi/layout.py update")
    return 1


def show(cc, headers):
    print(*layout([cc], headers), sep="\n")


def update(again):
    top = pathlib.Path(__file__).resolve().parent.parent.parent
    path, now = top / "tests/abi/layout.txt", digest(layout(["cc"], top / "include"))
    have, number = path.read_text("utf-8"), int(now.split()[1][:-1])
    if have != now and not again and have.split()[1] == now.split()[1]:
        for name, before in ("include/epa2a/plugin.h", "#define EPA_ABI "), ("meson.build", "abi = '"):
            file = top / name
            text = file.read_text("utf-8")
            file.write_text(text.replace(f"{before}{number}", f"{before}{number + 1}"), "utf-8")
        now = digest(layout(["cc"], top / "include"))
        assert now.split()[1] == f"{number + 1}:"
    path.write_text(now, "utf-8")


def alone(command, headers, text):
    with tempfile.TemporaryDirectory() as work:
        cuda = "nvcc" in pathlib.Path(command[0]).name
        source = pathlib.Path(work, "x.cu" if cuda else "x.cc" if "++" in " ".join(command) else "x.c")
        source.write_text(text)
        return subprocess.run([*command, f"-I{headers}", "-ptx" if cuda else "-c", source, "-o", f"{work}/x.o"], capture_output=True,
                              text=True, check=False)


def compile_each(cc, headers, *command):
    ends = (".h", ".cuh") if "nvcc" in pathlib.Path(command[0]).name else (".h",)
    paths, bad = public(headers, *ends), 0
    assert len(paths) >= 10, paths
    texts = {str(path.relative_to(headers)): including(headers, [path]) for path in paths}
    texts["all of them and the layout"] = including(headers, paths) + "#include <stddef.h>\n" + \
        SAME + "".join(f"SAME({line.replace(' == ', ', ')})\n" for line in layout([cc], headers))
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for name, done in zip(texts, pool.map(lambda text: alone(command, headers, text), texts.values())):
            if done.returncode != 0:
                print(f"{name}: {done.stderr[:2000]}")
                bad += 1
    return bad > 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["update"]:
        sys.exit(update("--again" in sys.argv))
    sys.exit({"check": check, "show": show, "compile": compile_each}[sys.argv[1]](*sys.argv[2:]))
