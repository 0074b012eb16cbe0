#!/usr/bin/env python3
"""terminal.py EPA2A: what files and names hold never reaches a terminal as more than text: no escape sequence but our colours
and the progress line, no C1 code, nothing that changes the direction of writing. The terminal is a pseudo one. What goes
to a pipe does in whole lines."""
import json
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile

epa2a = os.path.abspath(sys.argv[1])
EVIL = "a\x1b]0;title\x07b\x1b[2Jc\u009b31md\u202ee\u2066f\u200fg\x7fh"
OURS = re.compile(rb"\x1b\[(?:1;31|1;33|31|32|36|0)m|\r?\x1b\[K|\r(?=[^\n]*\x1b\[K)|\r\n")
BAD = re.compile(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]|\xd8\x9c")


def on_terminal(*args, cwd):
    main, side = pty.openpty()
    process = subprocess.Popen([epa2a, *args], stdin=side, stdout=side, stderr=side, cwd=cwd, env={**os.environ, "TERM": "xterm"})
    os.close(side)
    out = b""
    try:
        while part := os.read(main, 65536):
            out += part
    except OSError:  # no process has it open any more
        pass
    process.wait()
    os.close(main)
    return out


def check(what, *args, cwd, shows=b"a?"):
    out = on_terminal(*args, cwd=cwd)
    found = BAD.search(OURS.sub(b"", out))
    assert found is None, (what, found, out)
    assert shows in out, (what, "does not show it at all", out)
    return out


with tempfile.TemporaryDirectory() as work:
    at = pathlib.Path(work)
    quoted = json.dumps(EVIL)
    base = "version: 1\nname: %s\nranks: 2\ntransport: shm\nalgorithm: ll_v2\nmoe: {max_tokens: 4, hidden: 128, experts: 4, topk: 2}\nverify: {iterations: 2}\n"
    (at / "evil.yaml").write_text(base % quoted)
    (at / "wrong.yaml").write_text(base % "x" + f"{quoted}: 1\n")
    (at / "raw.yaml").write_text(base % "x" + "expert: {kind: 'a\u009b31m\u202e'}\n")
    (at / EVIL.replace("\x00", "")).write_text("version: 1\n")
    check("a run", "verify", "evil.yaml", "--json", "out.json", cwd=at)
    check("a run with progress", "verify", "evil.yaml", "--progress", "always", cwd=at)
    check("an unknown key", "config", "check", "wrong.yaml", cwd=at)
    check("a value", "config", "check", "raw.yaml", cwd=at)
    check("a path", "config", "check", EVIL, cwd=at)
    check("an option", "verify", "--" + EVIL, cwd=at)
    check("an assignment", "verify", "evil.yaml", "--set", EVIL + "=1", cwd=at)
    check("a folder of plugins", "list", "--plugin-path", EVIL, cwd=at)
    document = json.loads((at / "out.json").read_text())
    document["results"][0]["machine"] = {"host": EVIL}
    (at / "other.json").write_text(json.dumps(document))
    check("a comparison", "compare", "out.json", "other.json", cwd=at)
    (at / ("log " + EVIL)).write_text("[rank 0] Dispatch + combine bandwidth: 1 GB/s, avg_t=1.00 us, min_t=1 us, max_t=1 us\n")
    check("an import", "import", "log " + EVIL, cwd=at)
    check("an import as JSON", "import", "log " + EVIL, "--json", "-", cwd=at, shows=b"\\u001b")
    check("an import of an experiment", "import", EVIL, cwd=at)
    check("a show of results", "results", "other.json", cwd=at, shows=b"")
    out = check("colours", "config", "check", "wrong.yaml", "--color", "always", cwd=at)
    assert b"\x1b[" in out, ("no colours any more", out)

    # Several processes may share a pipe, as under mpirun: each line is one write, which is one
    # packet of this pipe.
    (at / "late.yaml").write_text(base % "x" + "fault: {kind: kill, rank: 1, iteration: 1}\n")
    for args in ["config", "check", "wrong.yaml"], ["bench", "there is no such file"], ["verify", "late.yaml", "--quiet"]:
        end, pipe = os.pipe2(os.O_DIRECT)
        subprocess.run([epa2a, *args], stdout=subprocess.DEVNULL, stderr=pipe, cwd=at)
        os.close(pipe)
        while part := os.read(end, 65536):
            assert part.endswith(b"\n"), (args, "part of a line", part)
        os.close(end)
