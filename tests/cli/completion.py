#!/usr/bin/env python3
"""completion.py EPA2A SCRIPTS SHELL: starts the shell on a terminal, types command lines followed by a Tab, and
checks the completed lines. SCRIPTS is the folder of epa2a.bash and the other scripts. The expected candidates come
from --help and list, which the scripts do not use. Skips (77) without the shell."""
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

LIMIT = 30  # seconds for one reply; a stuck shell must not hang the test
SHOW = "#!/bin/sh\nprintf '\\n<<'\nfor a; do printf '[%s]' \"$a\"; done\nprintf '>>\\n'\n"
FILES = {
    "small.yaml": "version: 1\n",
    "other.yml": "version: 1\nalgorithm: {name: alltoallv}\n",
    "notes.txt": "",
    "runs.yaml": "version: 1\nruns: {flag a rank: {}, flag a row: {}, other: {}}\nmatrix: {moe.topk: [4, 8]}\n",
    "results.json": '{"results": [{"stages": [{"name": "dispatch"}, {"name": "combine"}]}]}',
    "trace.json": '{"traceEvents": [{"name": "dispatch", "cat": "stage"}, {"name": "core", "cat": "core"}]}',
    "sub/inner.yaml": "version: 1\n",
}
PLUGIN_OPTION = ("launcher=thread", "launcher.p", "launcher.pin=")  # of one that is always there

# Typed keys and the resulting words; the test types a Z after the Tab.
LINES = [
    ("ver", ["verify", "Z"]),
    ("conf", ["config", "Z"]),
    ("config ch", ["config", "check", "Z"]),
    ("completion fi", ["completion", "fish", "Z"]),
    ("list tra", ["list", "transport", "Z"]),
    ("help exit", ["help", "exit-codes", "Z"]),
    ("help moe.hid", ["help", "moe.hidden", "Z"]),
    ("help EPA2A_I", ["help", "EPA2A_ISA", "Z"]),
    ("run --ti", ["run", "--timeout", "Z"]),
    ("list --plugin-p", ["list", "--plugin-path", "Z"]),
    ("run --set moe.hid", ["run", "--set", "moe.hidden=Z"]),
    ("run --set rank", ["run", "--set", "ranksZ"]),
    ("run --set moe", ["run", "--set", "moe.Z"]),
    ("run --set moe.dtype=b", ["run", "--set", "moe.dtype=bf16", "Z"]),
    ("run --set=moe.dtype=b", ["run", "--set=moe.dtype=bf16", "Z"]),
    ("run --set moe.hidden=", ["run", "--set", "moe.hidden=7168", "Z"]),
    ("run --set bench.check=f", ["run", "--set", "bench.check=false", "Z"]),
    ("run --set transport=sh", ["run", "--set", "transport=shm", "Z"]),
    ("run --set transport.name=sh", ["run", "--set", "transport.name=shm", "Z"]),
    ("run --set transport.between_nodes=sh", ["run", "--set", "transport.between_nodes=shm", "Z"]),
    ("run --set transport.between_nodes=reorder --set transport.between_nodes.ro",
     ["run", "--set", "transport.between_nodes=reorder", "--set", "transport.between_nodes.room=Z"]),
    ("run --set transport.between_nodes=shm --set transport.between_nodes.wait=sp",
     ["run", "--set", "transport.between_nodes=shm", "--set", "transport.between_nodes.wait=spin", "Z"]),
    ("tune --algorithms token", ["tune", "--algorithms", "token_flag", "Z"]),
    ("tune --algorithms ll_v1,token", ["tune", "--algorithms", "ll_v1,token_flag", "Z"]),
    ("tune --algorithms=ll_v1,token", ["tune", "--algorithms=ll_v1,token_flag", "Z"]),
    ("tune --keys algorithm.combine_dt", ["tune", "--keys", "algorithm.combine_dtype", "Z"]),
    ("tune --set algorithm=token_flag --keys algorithm.flag",
     ["tune", "--set", "algorithm=token_flag", "--keys", "algorithm.flag_granularity", "Z"]),
    ("plot results.json --stage com", ["plot", "results.json", "--stage", "combine", "Z"]),
    ("trace merge trace.json --stage disp", ["trace", "merge", "trace.json", "--stage", "dispatch", "Z"]),
    ("run --set launcher=au", ["run", "--set", "launcher=auto", "Z"]),
    ("run --set routing=zi", ["run", "--set", "routing=zipf", "Z"]),
    ("run --set algorithm.disp", ["run", "--set", "algorithm.dispatch_dtype=Z"]),
    ("run --set algorithm.dispatch_dtype=fp", ["run", "--set", "algorithm.dispatch_dtype=fp8", "Z"]),
    ("run --set repe", ["run", "--set", "repeat=Z"]),
    ("run --set matrix.moe.hid", ["run", "--set", "matrix.moe.hidden=Z"]),
    ("run sm", ["run", "small.yaml", "Z"]),
    ("run ./sm", ["run", "./small.yaml", "Z"]),
    ("bench small.yaml oth", ["bench", "small.yaml", "other.yml", "Z"]),
    ("run no", ["run", "noZ"]),
    ("bench worklog-n", ["bench", "worklog-nvlink", "Z"]),
    ("config check token_flag-s", ["config", "check", "token_flag-shm", "Z"]),
    ("bench ll_v2-replay wor", ["bench", "ll_v2-replay", "worklogZ"]),
    ("config show fused-ablation --only exp", ["config", "show", "fused-ablation", "--only", "expZ"]),
    ("run sub/i", ["run", "sub/inner.yaml", "Z"]),
    ("config check sm", ["config", "check", "small.yaml", "Z"]),
    ("compare re", ["compare", "results.json", "Z"]),
    ("compare sm", ["compare", "smZ"]),
    ("plot re", ["plot", "results.json", "Z"]),
    ("bench re", ["bench", "results.json", "Z"]),
    ("plot results.json --kind sk", ["plot", "results.json", "--kind", "skew", "Z"]),
    ("plot -o no", ["plot", "-o", "notes.txt", "Z"]),
    ("bench -n 5 sm", ["bench", "-n", "5", "small.yaml", "Z"]),
    ("run --json no", ["run", "--json", "notes.txt", "Z"]),
    ("run --json=no", ["run", "--json=notes.txt", "Z"]),
    ("run --set routing.path=no", ["run", "--set", "routing.path=notes.txt", "Z"]),
    ("list --plugin-path su", ["list", "--plugin-path", "sub/Z"]),
    ("frobnicate x", ["frobnicate", "xZ"]),
    ("run --set frob.x=", ["run", "--set", "frob.x=Z"]),
    ("run runs.yaml --only ot", ["run", "runs.yaml", "--only", "other moe.topk=Z"]),
    ("run runs.yaml --only other\\ moe.topk=8", ["run", "runs.yaml", "--only", "other moe.topk=8", "Z"]),
    ("config show runs.yaml --only flag\\ a\\ ro", ["config", "show", "runs.yaml", "--only", "flag a row moe.topk=Z"]),
    ("run -- sm", ["run", "--", "small.yaml", "Z"]),
]


class Terminal:
    """A shell on a terminal of its own."""

    def __init__(self, argv, env, folder):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execvpe(argv[0], argv, env)
        self.seen = ""

    def type(self, text):
        data = text.encode()
        while data:
            data = data[os.write(self.fd, data):]

    def wait(self, pattern):
        """Waits until the match was printed, and drops the output before it."""
        end = time.monotonic() + LIMIT
        while True:
            match = re.search(pattern, self.seen)
            if match:
                self.seen = self.seen[match.end():]
                return match
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.fd], [], [], left)[0]:
                raise TimeoutError(f"no {pattern} after {LIMIT} s: {self.seen[-2000:]!r}")
            try:
                data = os.read(self.fd, 65536)
            except OSError:
                data = b""
            if not data:
                raise EOFError(f"the shell ended: {self.seen[-2000:]!r}")
            self.seen += data.decode("utf-8", "replace")

    def words(self, keys):
        """Types the keys, then makes the line the arguments of show-args."""
        self.type(keys + "\x01show-args \r")
        found = self.wait(r"<<((?:\[[^\r\n]*\])?)>>")[1]
        return found[1:-1].split("][") if found else []

    def close(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


LOADER = "/usr/share/bash-completion/bash_completion"  # of the package bash-completion
# For each shell: a start without user files, its set-up, commands to load a printed or installed
# script, the folder for the latter, and the keys that insert every candidate.
SHELLS = {
    "bash": {
        "command": ["bash", "--norc", "--noprofile", "-i"],
        "setup": "bind 'set bell-style none'; {load}; show-args $((40 + 2))",
        "printed": ". <(epa2a completion bash)", "installed": f". {LOADER}",
        "place": "bash-completion/completions", "file": "epa2a", "env": {"XDG_DATA_HOME": "{data}"}, "all": "\x1b*",
    },
    "zsh": {
        "command": ["zsh", "-f", "-i"],
        # Documented as _all_matches: every candidate goes into the line.
        "setup": "unsetopt beep autolist; bindkey -e; {load}; "
                 "zle -C all-matches complete-word _generic; bindkey '^Xa' all-matches; "
                 "zstyle ':completion:all-matches:*' completer _all_matches _complete; "
                 "zstyle ':completion:all-matches:*' insert true; show-args $((40 + 2))",
        "printed": "autoload -Uz compinit; compinit -u -D; source <(epa2a completion zsh)",
        "installed": "fpath=({data}/functions $fpath); autoload -Uz compinit; compinit -u -D",
        "place": "functions", "file": "_epa2a", "env": {}, "all": "\x18a",
    },
    "fish": {
        "command": ["fish", "--private"],
        "setup": "function fish_prompt; end; set -g fish_autosuggestion_enabled 0; {load}; show-args (math 40 + 2)",
        "printed": "epa2a completion fish | source", "installed": "true",
        "place": "fish/vendor_completions.d", "file": "epa2a.fish",
        "env": {"XDG_DATA_DIRS": "{data}:/usr/local/share:/usr/share"}, "all": None,  # it lists them by a word of its own
    },
}


def start(name, folder, env, scripts, way):
    """The shell, and what gives the words of a line with every candidate in it."""
    how, data = SHELLS[name], folder / "data"
    if way == "installed":
        (data / how["place"]).mkdir(parents=True)
        shutil.copy(scripts / f"epa2a.{name}", data / how["place"] / how["file"])
        env = dict(env, **{key: value.format(data=data) for key, value in how["env"].items()})
    shell = Terminal(how["command"], env, folder / "cwd")
    shell.type(how["setup"].replace("{load}", how[way].replace("{data}", str(data))) + "\r")
    shell.wait(r"<<\[42\]>>")

    def candidates(line):
        if how["all"] is not None:
            return shell.words(line + how["all"])
        shell.type(f"show-args (complete -C '{line}' | string replace -r '\\t.*' '')\r")
        found = shell.wait(r"<<((?:\[[^\r\n]*\])?)>>")[1]
        before = line.split()[:len(line.split()) - (not line.endswith(" "))]
        return before + (found[1:-1].split("][") if found else [])
    return shell, candidates


def asked(epa2a, *args):
    return subprocess.run([epa2a, *args], capture_output=True, text=True, check=True).stdout


def lists(epa2a):
    """Lines, and all the words that they must offer."""
    commands = re.findall(r"^  ([a-z]+) ", asked(epa2a, "--help"), re.M)
    options = re.findall(r"^  (?:-., )?(--[a-z-]+)", asked(epa2a, "run", "--help"), re.M)
    transports = re.findall(r"^  ([a-z0-9_]+) ", asked(epa2a, "list", "transport"), re.M)
    hidden = re.findall(r"^  (?:choices|       )   ([a-z0-9_]+) ", asked(epa2a, "help", "routing.kind"), re.M)
    keys = re.findall(r"^  (moe\.[a-z0-9_]+) ", asked(epa2a, "help", "moe"), re.M)
    assert len(commands) > 6 and "--set" in options and "shm" in transports and "zipf" in hidden
    yield "epa2a ", commands
    yield "epa2a run --", options
    yield "epa2a run --set transport=", ["transport=" + t for t in transports]
    yield "epa2a run --set routing.kind=", ["routing.kind=" + h for h in hidden]
    yield "epa2a bench --set moe.", [k + "=" for k in keys]
    yield "epa2a list ", ["backend", "launcher", "transport", "algorithm", "models", "configs"]
    yield "epa2a bench --model ", re.findall(r"^  ([a-z0-9.-]+) ", asked(epa2a, "list", "models"), re.M)
    yield "epa2a run ", ["small.yaml", "other.yml", "runs.yaml", "results.json", "trace.json", "sub/"]


def bare(word):
    """Returns the candidate without the common part: for bash the word begins after the =."""
    return re.sub(r"^.*=(?=.)", "", word).rstrip("/")


def try_shell(name, way, epa2a, scripts):
    if (name, way) == ("bash", "installed") and not os.path.exists(LOADER):
        print("SKIP part: no bash-completion to load the script (package bash-completion)")
        return 0
    failed = 0
    with tempfile.TemporaryDirectory() as temp:
        folder = pathlib.Path(temp)
        for path, text in FILES.items():
            (folder / "cwd" / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / "cwd" / path).write_text(text)
        (folder / "bin").mkdir()
        (folder / "bin/show-args").write_text(SHOW)
        (folder / "bin/show-args").chmod(0o755)
        os.symlink(epa2a, folder / "bin/epa2a")
        # Without this folder fish parses all man pages in the background.
        (folder / "home/.local/share/fish/generated_completions").mkdir(parents=True)
        env = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "HOME": str(folder / "home"),
               "LC_ALL": "C.UTF-8", "TERM": "xterm", "PS1": "", "COLUMNS": "200"}
        env.update((k, v) for k, v in os.environ.items() if k.endswith("SAN_OPTIONS"))
        shell, candidates = start(name, folder, env, scripts, way)
        lines = list(LINES)
        first, typed, key = PLUGIN_OPTION
        lines.append((f"run --set {first} --set {typed}", ["run", "--set", first, "--set", key + "Z"]))
        if re.search(r"^  alltoallv ", asked(epa2a, "list", "algorithm"), re.M):
            lines.append(("run other.yml --set algorithm.mo",
                          ["run", "other.yml", "--set", "algorithm.mode=Z"]))
        try:
            for typed, want in lines:
                got = shell.words(f"epa2a {typed}\tZ")
                if got != ["epa2a", *want]:
                    print(f"{name}, {way}: epa2a {typed}<Tab>Z became {got}, not {want}")
                    failed += 1
            before = "env" if name == "fish" else "sudo"  # that of fish 3.6 hands nothing on
            got = shell.words(f"{before} epa2a ver\tZ")
            if got != [before, "epa2a", "verify", "Z"] and not (name == "bash" and way == "printed"):
                print(f"{name}, {way}: behind another command it became {got}")
                failed += 1
            # bash closes an open quote after a completed word
            for typed, want in (("moe.hid", "moe.hidden="), ("matrix.moe.dtype=[bf16,f", "matrix.moe.dtype=[bf16,f16")):
                # fish closes the quote and ends the word, unless the word ends in = or the like
                ends = name == "fish" and want[-1] != "="
                got = shell.words(f"epa2a run --set '{typed}\tZ" + "'" * (name != "bash" and not ends))
                if " ".join(got) != f"epa2a run --set {want}{' ' * ends}Z":
                    print(f"{name}, {way}: with a quote open it became {got}, not {want}")
                    failed += 1
            for line, want in lists(epa2a):
                before = line.split()[:len(line.split()) - (not line.endswith(" "))]
                got = candidates(line)[len(before):]
                if {bare(word) for word in got} != {bare(word) for word in want}:
                    print(f"{name}, {way}: {line}: {got}, not {want}")
                    failed += 1
        finally:
            shell.close()
    print(f"{name}, {way}: {len(lines) + 10 - failed} of {len(lines) + 10} as they should be")
    return failed


def main(epa2a, scripts, name):
    if shutil.which(name, path="/usr/bin:/bin:/usr/local/bin") is None:
        print(f"SKIP: there is no {name} here (package {name})")
        return 77
    epa2a = os.path.abspath(epa2a)
    failed = sum(try_shell(name, way, epa2a, pathlib.Path(scripts)) for way in ("printed", "installed"))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
