#!/usr/bin/env python3
"""stdout.py EPA2A PLUGINS INNER: output of plugins and libraries never reaches standard output. The algorithm tap
(tests/plugins/tap.c) prints with printf() and write() when it is loaded, planned, created and unloaded; the libraries
of the transport ucx print their log."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

epa2a, plugins, inner = (os.path.realpath(arg) for arg in sys.argv[1:4])
PRINTS = {"EPA2A_TEST_PRINT": "1", "UCX_LOG_LEVEL": "debug", "UCX_NET_DEVICES": "no_such_device:1", "ONEDNN_VERBOSE": "all"}
FILE = f"""version: 1
ranks: 2
algorithm: {{name: tap, plugin: {inner}}}
moe: {{max_tokens: 4, hidden: 128, experts: 4, topk: 2}}
bench: {{iterations: 20, warmup: 2}}
"""


def run(*args, env=(), code=0):
    paths = {"EPA2A_PLUGIN_PATH": ":".join([plugins, *found])}
    done = subprocess.run([epa2a, *args], env={**os.environ, **paths, **dict(env)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          timeout=120, check=False)
    assert done.returncode == code, f"{args}: exit code {done.returncode}: {done.stdout[-300:]}{done.stderr[-800:]}"
    return done


# With EPA2A_PLUGIN_PATH the build tree is not searched.
top = pathlib.Path(epa2a).parent.parent / "plugins"
found = [str(path.parent) for path in top.glob("*/*/epa2a-*.so")]
has_ucx = "\n  ucx" in run("list", "transport").stdout
with tempfile.TemporaryDirectory(prefix="epa2a-stdout-") as folder:
    os.chdir(folder)
    pathlib.Path("x.yaml").write_text(FILE, "utf-8")
    for args in (["list"], ["list", "--json", "-"], ["help", "algorithm.tap"], ["help"], ["config", "show", "x.yaml"], ["config", "schema"],
                 ["completion", "bash"], ["__complete", "run", "x.yaml", "--set", "algorithm.pl"]):
        plain, printing = run(*args), run(*args, env=PRINTS.items())
        assert plain.stdout == printing.stdout, (args, printing.stdout[:500])
    assert "printed by a plugin" in run("list", env=PRINTS.items()).stderr
    prints = {key: text for key, text in PRINTS.items() if key != "UCX_NET_DEVICES"}  # ranks use it
    for launcher in ("fork", "thread"):
        for transport in ("shm", "ucx") if has_ucx else ("shm",):
            options = ["x.yaml", "--set", f"launcher={launcher}", "--set", f"transport={transport}"]
            for verb in ("run", "bench", "verify"):
                done = run(verb, *options, "--json", "-", env=prints.items())
                assert json.loads(done.stdout)["results"][0]["status"] == "ok", done.stdout[:500]
                assert "printed by a plugin" in done.stderr
            lines = run("bench", *options, "--set", "repeat=3", "--json-lines", "/dev/stdout", env=prints.items()).stdout.splitlines()
            assert [json.loads(line)["results"][0]["status"] for line in lines] == ["ok"] * 3
            text = run("bench", *options, env=prints.items()).stdout
            assert text.startswith("# epa2a bench") and "printed" not in text and "UCX  " not in text, text
    json.loads(run("doctor", "--quick", "--json", "-", env=prints.items()).stdout)
    os.chdir("/")
print("with ucx" if has_ucx else "without the transport ucx")
