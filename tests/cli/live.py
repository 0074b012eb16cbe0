#!/usr/bin/env python3
"""live.py EPA2A CONFIG KIND: output of a command while it runs, on a terminal and to others. KIND: progress | pipes |
unread | colour | signal | status | others | twice. The test measures no times: it waits for each expected event, at
most LIMIT seconds."""
import atexit
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time

signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of scripts, and so in epa2a

LIMIT = 60
EPA2A, CONFIG, KIND = sys.argv[1:4]
ENDLESS = ["--set", "bench.iterations=1000000", "--set", "bench.warmup=0", "--timeout", "200s"]
ENV = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM", "COLUMNS")}


class Command:
    """A command with its standard error, or all it prints, on a terminal or in a pipe."""

    def __init__(self, *args, terminal=(), env=None, columns=100, full=""):
        self.seen, self.fds = {"out": b"", "err": b""}, {}
        ends = {}
        if terminal:
            master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
        for name in ("out", "err"):
            if name in terminal:
                ends[name] = slave
                self.fds[name] = master if name == terminal[0] else None
            else:
                self.fds[name], ends[name] = os.pipe()
            if name == full:
                os.write(ends[name], bytes(fcntl.fcntl(ends[name], 1032)))  # F_GETPIPE_SZ
        self.process = subprocess.Popen([EPA2A, *args], stdin=subprocess.DEVNULL, stdout=ends["out"],
                                        stderr=ends["err"], env=dict(ENV, **(env or {"TERM": "xterm"})),
                                        start_new_session=True)
        atexit.register(self.process.kill)  # ends the endless process if a check fails
        for end in set(ends.values()):
            os.close(end)

    def read(self, seconds):
        """Reads the available output. Returns False if all ends are closed."""
        fds = {fd: name for name, fd in self.fds.items() if fd is not None}
        if not fds:
            return False
        for fd in select.select(list(fds), [], [], seconds)[0]:
            try:
                data = os.read(fd, 65536)
            except OSError:
                data = b""
            if data:
                self.seen[fds[fd]] += data
            else:
                os.close(fd)
                self.fds[fds[fd]] = None
        return True

    def wait_for(self, name, pattern):
        end = time.monotonic() + LIMIT
        while True:
            match = re.search(pattern, self.seen[name])
            if match:
                return match
            if time.monotonic() > end or not self.read(1):
                raise SystemExit(f"FAIL: no {pattern} in {self.seen}")

    def finish(self):
        end = time.monotonic() + LIMIT
        while self.read(1):
            if time.monotonic() > end:
                self.process.kill()
                raise SystemExit(f"FAIL: it does not end: {self.seen}")
        return self.process.wait(LIMIT)

    def ranks(self):
        """Process numbers, once all four iterate."""
        def going():
            run = status(self.process.pid)["run"]
            ranks = run["ranks"] if run else []
            return ranks if len(ranks) == 4 and all((r["samples"] or 0) > 0 for r in ranks) else None
        return [r["pid"] for r in until(going)]


def check(good, what):
    if not good:
        raise SystemExit(f"FAIL: {what}")


def until(look):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        found = look()
        if found:
            return found
        time.sleep(0.02)
    raise SystemExit(f"FAIL: never came to be: {look.__name__}")


def ask(*args, **more):
    return subprocess.run([EPA2A, *args], capture_output=True, text=True, timeout=LIMIT, env=ENV, **more)


def status(pid):
    """Returns the status as JSON; before the command has begun, the result equals the time between two runs."""
    done = ask("status", str(pid), "--json", "-")
    if done.returncode != 0:
        return {"run": None}
    return json.loads(done.stdout)["commands"][0]


def lines(data):
    """Returns the successive contents of the last line of a terminal."""
    return [part.decode() for part in re.findall(rb"\r([^\r\n]*?)\x1b\[K", data)]


def progress():
    command = Command("bench", CONFIG, *ENDLESS, terminal=("err",), columns=72)
    command.wait_for("err", rb"\rbench 1/1 [^\r]*iteration [1-9]\d*/1000000, median [\d.]+ [um]s, [^\r]* left\x1b")
    first = lines(command.seen["err"])[-1]
    end = time.monotonic() + LIMIT
    while lines(command.seen["err"])[-1] in (first, "") and time.monotonic() < end:
        command.read(1)
    check(lines(command.seen["err"])[-1] != first, "it is not drawn again")
    check(all(len(line) < 72 for line in lines(command.seen["err"])), lines(command.seen["err"]))
    os.kill(command.process.pid, signal.SIGINT)
    check(command.finish() == 130, command.seen)
    drawn, told = command.seen["err"].rsplit(b"\r\x1b[K", 1)
    check(drawn.endswith(b"\x1b[K") and b"\n" not in drawn, f"something is written behind the line: {drawn}")
    check(re.search(rb"small-4.yaml: [^\r\n]*error[^\r\n]*: interrupted\r\n$", told) and
          re.search(rb"\r[^\n]", told) is None, f"the line is not taken away before other output: {told}")
    check(b"\r" not in command.seen["out"] and b"\x1b" not in command.seen["out"], command.seen["out"])
    # "never" also applies to a terminal without capabilities, and to --quiet.
    for args, env in ((["--progress", "never"], "xterm"), ([], "dumb"), (["--quiet"], "xterm")):
        command = Command("verify", CONFIG, *args, terminal=("err",), env={"TERM": env})
        check(command.finish() == 0 and b"\x1b" not in command.seen["err"] and b"\rverify" not in command.seen["err"],
              (args, env, command.seen["err"]))


def pipes():
    command = Command("bench", CONFIG, "--set", "bench.iterations=300", env={"TERM": "xterm"})
    check(command.finish() == 0, command.seen)
    check(b"\x1b" not in command.seen["err"] + command.seen["out"] and b"\r" not in command.seen["err"], command.seen)
    command = Command("bench", CONFIG, *ENDLESS, "--progress", "always")
    command.wait_for("err", rb"\rbench 1/1 [^\r]*iteration [1-9]")
    os.kill(command.process.pid, signal.SIGTERM)
    check(command.finish() == 143, command.seen)
    check(b"\x1b" not in command.seen["out"], command.seen["out"])


def unread():
    """A signal ends the command even if its standard error has no reader any more."""
    command = Command("bench", CONFIG, *ENDLESS, full="err")
    command.ranks()
    os.kill(command.process.pid, signal.SIGTERM)
    try:
        check(command.process.wait(LIMIT) == 143, command.process.returncode)
    finally:
        command.process.kill()


def colour():
    wrong = ["run", "--set", "moe.hiden=64", CONFIG]

    def escapes(env, *args, terminal=("err",)):
        command = Command(*wrong, *args, terminal=terminal, env=env)
        check(command.finish() == 2, command.seen)
        return command.seen["err"].replace(b"\r\n", b"\n")

    plain = escapes({"TERM": "xterm"}, terminal=())
    coloured = escapes({"TERM": "xterm"})
    check(b"\x1b" not in plain and b"\x1b[1;31merror\x1b[0m: " in coloured, (plain, coloured))
    check(re.sub(rb"\x1b\[[\d;]*m", b"", coloured) == plain, "without its colour it is another text")
    check(escapes({"TERM": "xterm"}, "--color", "always", terminal=()) == coloured, "always")
    check(escapes({"TERM": "xterm"}, "--color", "never") == plain, "never")
    check(escapes({"TERM": "xterm", "NO_COLOR": "1"}) == plain, "NO_COLOR")
    check(escapes({"TERM": "xterm", "NO_COLOR": ""}) == coloured, "NO_COLOR that is empty")
    check(escapes({"TERM": "dumb"}) == plain, "TERM=dumb")
    check(escapes({"NO_COLOR": "1", "TERM": "xterm"}, "--color=always") == coloured, "what is asked for wins")
    done = ask("run", CONFIG, "--color", "alway")
    check(done.returncode == 2 and "'always'" in done.stderr, done)


def stopped(command):
    """Stops rank 1; returns its process number."""
    pid = command.ranks()[1]
    os.kill(pid, signal.SIGSTOP)
    return pid


def waits_for_rank_1(command):
    """What status says once all others wait for rank 1, or for one that does."""
    def all_wait():
        ranks = status(command.process.pid)["run"]["ranks"]
        others = [r for r in ranks if r["rank"] != 1]
        good = ranks[1]["state"] == "stopped" and all(r["state"] == "waiting" for r in others)
        return ranks if good and any(r["waits_for"]["rank"] == 1 for r in others) else None
    return until(all_wait)


def without_times(page):
    """Returns a page without the parts that change by themselves."""
    return re.sub(r"for [\d.]+ s:|[\d.]+ s;", "T", page)


def page_by_signal(command):
    """What the command shows on SIGUSR1 is what `status` says. Ranks may go on meanwhile, until all wait that can:
    then both are asked again."""
    pid, pages = command.process.pid, 0

    def as_status_says():
        nonlocal pages
        before = ask("status", str(pid)).stdout
        os.kill(pid, signal.SIGUSR1)
        pages += 1
        command.wait_for("err", rb"(?:(?s:.*?)\n#      3 [^\n]*\n){%d}" % pages)
        if without_times(ask("status", str(pid)).stdout) != without_times(before):
            return None
        shown = command.seen["err"].decode().rpartition("# pid ")
        shown = "".join(line[2:] for line in (shown[1] + shown[2]).splitlines(keepends=True) if line.startswith("# "))
        check(without_times(shown) == without_times(before), (shown, before))
        return shown
    return until(as_status_says)


def by_signal():
    command = Command("bench", CONFIG, *ENDLESS, "--json", "-")
    os.kill(command.process.pid, 0)
    ranks = command.ranks()
    for pid in ranks: # a rank that gets the signal by accident, as a member of a group, continues
        os.kill(pid, signal.SIGUSR1)
    stop = stopped(command)
    waits_for_rank_1(command)
    told = page_by_signal(command)
    check(re.search(r"^pid \d+: bench .*small-4.yaml, run 1 of 1, [\d.]+ s; 1000000 iterations$", told, re.M), told)
    check(re.search(rf"^     1 +{stop} \S+ +stopped ", told, re.M), told)
    # For each location of rank 1: waits for its flag, its signal or a barrier.
    check(re.search(r"^     [023] .* waiting .*rank 1 for [\d.]+ s: .* \d+.*, wants \d+$", told, re.M), told)
    before = {r["rank"]: r["iteration"] for r in status(command.process.pid)["run"]["ranks"]}
    os.kill(stop, signal.SIGCONT)

    def goes_on():
        ranks = status(command.process.pid)["run"]["ranks"]
        return all(r["iteration"] > before[r["rank"]] for r in ranks)
    until(goes_on)
    check(b"#" not in command.seen["out"], "it is on standard output")
    os.kill(command.process.pid, signal.SIGINT)
    check(command.finish() == 130, command.seen)
    check(json.loads(command.seen["out"])["results"][0]["status"] == "interrupted", command.seen["out"])


def by_status():
    without_proc()
    held_by_a_fifo()
    command = Command("bench", CONFIG, *ENDLESS)
    pid = command.process.pid
    stop = stopped(command)
    ranks = waits_for_rank_1(command)
    os.kill(pid, signal.SIGSTOP)  # no reply is needed from ranks or from the launcher
    for rank in ranks:
        os.kill(rank["pid"], signal.SIGSTOP)
    text = ask("status", str(pid)).stdout
    check(text.startswith(f"pid {pid}: bench ") and len(text.splitlines()) == 6, text)
    check(ask("status", str(stop)).stdout.splitlines()[2:] and
          ask("status", str(stop)).stdout.startswith(f"pid {pid}: bench "), "not by a rank's number")
    check(re.search(r"^ +[023] .*rank 1 for [\d.]+ s: .*wants \d+$", text, re.M), text)
    whole = json.loads(ask("status", str(pid), "--json").stdout)
    run = whole["commands"][0]["run"]
    for part, keys in ((whole, "commands schema"), (whole["commands"][0], "elapsed_s pid run version"),
                       (run, "elapsed_s file iterations label number of process_of_rank ranks verb warmup"),
                       *((r, "host iteration pid rank samples stage state waits_for") for r in run["ranks"]),
                       *((r["waits_for"], "kind rank seen signal waited_s wanted what")
                         for r in run["ranks"] if r["waits_for"] is not None)):
        check(sorted(part) == keys.split(), part)
    check(run["file"] == CONFIG and run["verb"] == "bench" and run["iterations"] == 1000000, run)
    # A rank that waited for another may have continued before the stop and not yet recorded its
    # next wait.
    waits = [r["waits_for"] for r in run["ranks"] if r["rank"] != 1 and r["waits_for"] and r["waits_for"]["rank"] == 1]
    check(waits and all(w["wanted"] > w["seen"] for w in waits), run)
    check(f"pid {pid}: bench " in ask("status").stdout, "it is not in the list")
    check(str(pid) in ask("__complete", "status", "").stdout, "it is not completed")
    check(str(stop) not in ask("__complete", "status", "").stdout, "a rank is completed")
    if os.geteuid() == 0 and subprocess.run(["setpriv", "--version"], capture_output=True, check=False).returncode == 0:
        done = subprocess.run(["setpriv", "--reuid=65534", "--clear-groups", EPA2A, "status", str(pid)],
                              capture_output=True, text=True, check=False)
        if "Permission denied" not in done.stderr or "status" in done.stderr:  # otherwise the program itself is not readable for the user
            check(done.returncode == 3 and "only its own user and root" in done.stderr, done)
    for rank in ranks:
        os.kill(rank["pid"], signal.SIGCONT)
    os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGINT)
    check(command.finish() == 130, command.seen)
    check(f"pid {pid}:" not in ask("status").stdout, "it is still in the list")


def apart(script, *args):
    """A command behind what `script` does in a mount namespace of its own; None: no right to have one."""
    under = ["unshare", *([] if os.geteuid() == 0 else ["-r"]), "-m", "sh", "-c", script, "sh"]
    may = shutil.which("unshare") is not None and subprocess.run(
        [*under[:-4], "true"], capture_output=True, check=False).returncode == 0
    return [*under, *args] if may else None


def without_proc():
    """Without access to /proc the message says so, instead of reporting that no process runs."""
    command = apart('mount -t tmpfs none /proc && exec "$@"', EPA2A, "status")
    if command is None:
        return
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    # LeakSanitizer cannot trace at exit, either, and has its own exit code.
    check(done.returncode == 3 or "LeakSanitizer" in done.stderr, done)
    check("/proc is not mounted" in done.stderr, done)


def held_by_a_fifo():
    """Another user in a container may create a FIFO with the name of a page, whose file system /proc does not show."""
    command = apart('mount -t tmpfs none /tmp && mkfifo "$1" && exec 3<>"$1" 4<"$1" 3>&- && umount -l /tmp && echo && '
                    'exec sleep 100', "/tmp/memfd:epa2a-status ")
    if command is None:
        return
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    if holder.stdout.read(1):  # otherwise the user may not mount
        done = ask("status", str(holder.pid))
        check(done.returncode == 3 and "runs an epa2a of an unknown version" in done.stderr, done)
    holder.kill()
    holder.wait()


def others():
    """Each process of ranks started by other programs shows its own rank, and says so."""
    reserved = socket.socket()  # keeps the port from other programs; rank 0 sets SO_REUSEADDR, too
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    started = [Command("bench", CONFIG, *ENDLESS, "--set", "ranks=2", "--set", "launcher.name=env",
                       env={"TERM": "xterm", "RANK": str(r), "WORLD_SIZE": "2", "LOCAL_RANK": str(r),
                            "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
               for r in range(2)]
    for r, command in enumerate(started):
        def iterates():
            run = status(command.process.pid)["run"]
            return run if run and (run["ranks"][r]["samples"] or 0) > 0 else None
        run = until(iterates)
        check(run["process_of_rank"] == r and run["ranks"][1 - r]["state"] == "absent", run)
        text = ask("status", str(command.process.pid)).stdout
        check(f"process of rank {r} of 2" in text and len(text.splitlines()) == 3, text)
        os.kill(command.process.pid, signal.SIGUSR1)
        command.wait_for("err", rb"\n# +%d +\d+ .* (running|waiting) " % r)
    os.kill(started[1].process.pid, signal.SIGINT)
    for command in started:
        check(command.finish() == 130, command.seen)


def twice():
    """The first asks ranks to leave, and the second does not wait for those that cannot."""
    command = Command("bench", CONFIG, *ENDLESS, "--set", "launcher=fork", "--json", "-")
    pid = command.process.pid
    stop = stopped(command)
    os.kill(pid, signal.SIGINT)

    def others_have_left():
        return not ask("status", str(stop)).stdout or "done" in ask("status", str(stop)).stdout or \
            "failed" in ask("status", str(stop)).stdout
    until(others_have_left)
    try:
        os.kill(pid, signal.SIGINT)
    except ProcessLookupError:
        pass
    check(command.finish() == 130, command.seen)
    check(json.loads(command.seen["out"])["results"][0]["status"] == "interrupted", command.seen["out"])
    check(not os.path.exists(f"/proc/{stop}"), "the rank that was stopped is left")


{"progress": progress, "pipes": pipes, "unread": unread, "colour": colour, "signal": by_signal,
 "status": by_status, "others": others, "twice": twice}[KIND]()
