#!/usr/bin/env python3
"""outputs.py EPA2A CONFIG: every output is written, or refused before anything runs; none is lost, and no temporary file stays.

Mount points need `unshare` with root or user namespaces; system calls that a container refuses need seccomp. What cannot be tried here is
named, and the exit code is 77 if nothing could be tried."""
import ctypes
import errno
import fcntl
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time

EPA2A, CONFIG = (os.path.realpath(arg) for arg in sys.argv[1:3])
FEW = [CONFIG, "--set", "bench.iterations=20", "--set", "bench.warmup=2"]
DOCUMENTS = ["--json", "--csv", "--junit", "--markdown", "--openmetrics", "--json-lines"]
SYSTEM_CALLS = {"x86_64": {"arch": 0xC000003E, "fcntl": 72, "statx": 332, "faccessat2": 439},
                "aarch64": {"arch": 0xC00000B7, "fcntl": 25, "statx": 291, "faccessat2": 439}}.get(platform.machine())
skipped = []
if subprocess.run([EPA2A, "bench", CONFIG, "--dry-run", "--html", "x"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode == 0:
    DOCUMENTS.append("--html")
else:
    skipped.append("--html: Python lacks the packages of a page")


def run(*args, under=(), code=0, **how):
    done = subprocess.run([*under, EPA2A, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False, **how)
    assert done.returncode == code, f"{args} {under}: exit code {done.returncode}, not {code}: {done.stdout[-300:]}{done.stderr[-600:]}"
    return done


def expect_refused(done, words):
    """Nothing has run, and one line says why."""
    assert done.stdout == "" and words in done.stderr and done.stderr.count("\n") == 1, (done.stdout, done.stderr)


def expect_only(*names):
    assert sorted(os.listdir()) == sorted(names), (os.listdir(), names)


def refuse_calls(*names, error, argument=None):
    """Makes system calls of this process fail, those with that second argument or all, as seccomp of a container does."""
    def code(op, k, then=0, other=0):
        return struct.pack("=HBBI", op, then, other, k)
    load, equal, end = 0x20, 0x15, 0x06
    program = [code(load, 4), code(equal, SYSTEM_CALLS["arch"], 1), code(end, 0x7FFF0000)]
    for name in names:
        last = [code(end, 0x00050000 | error)]
        if argument is not None:
            last = [code(load, 24), code(equal, argument, 0, 1), *last]
        program += [code(load, 0), code(equal, SYSTEM_CALLS[name], 0, len(last)), *last]
    program.append(code(end, 0x7FFF0000))
    text = ctypes.create_string_buffer(b"".join(program))
    filter_of = ctypes.create_string_buffer(struct.pack("@HP", len(program), ctypes.addressof(text)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(38, 1, 0, 0, 0) != 0 or libc.prctl(22, 2, ctypes.byref(filter_of), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "seccomp")


def has_seccomp():
    if SYSTEM_CALLS is None:
        skipped.append("seccomp: the numbers of system calls are known for x86_64 and aarch64")
    return SYSTEM_CALLS is not None


def mounts():
    """How to run a shell that can mount; None: it cannot."""
    for how in (["unshare", "-m"], ["unshare", "-rm"]):
        if shutil.which("unshare") and subprocess.run([*how, "sh", "-c", "mount -t tmpfs none /mnt"], stderr=subprocess.DEVNULL, check=False).returncode == 0:
            return how
    skipped.append("mount points: no mount namespaces")
    return None


# ---- promises ----

def names_of_255_bytes_are_written():
    for ending, options in (("", DOCUMENTS), (".svg", ["plot"])):
        for option in options:
            for n in (244, 255):
                name = "n" * (n - len(ending)) + ending
                if option == "plot":
                    run("bench", *FEW, "--json", "../r.json", "--force", "--quiet")
                    command = ["plot", "../r.json", "-o"]
                    if subprocess.run([EPA2A, *command, "../r.svg", "--force"], stderr=subprocess.DEVNULL, check=False).returncode == 3:
                        skipped.append("plot: Python lacks the packages of charts")
                        continue
                else:
                    command = ["bench", *FEW, "--quiet", option]
                run(*command, name)
                assert os.path.getsize(name) > 0
                run(*command, name, "--force")
                expect_only(name)
                os.remove(name)
    for name in ("n" * 256, "n" * 300 + "/r.json", "r/" * 2100 + "r.json"):
        for option in DOCUMENTS:
            expect_refused(run("bench", *FEW, option, name, code=2), "name")
            expect_refused(run("bench", *FEW, option, name, "--dry-run", code=2), "name")
    expect_refused(run("bench", *FEW, "--out-dir", "n" * 256, code=2), "name")
    expect_only()


def mount_points_are_written_in_place():
    how = mounts()
    for option in DOCUMENTS if how else []:
        for readonly in (False, True):
            pathlib.Path("f").write_text("old")
            mount = "mount --bind f f && " + ("mount -o remount,ro,bind f && " if readonly else "") + 'exec "$@"'
            under = [*how, "sh", "-c", mount, "sh"]
            if readonly:
                expect_refused(run("bench", *FEW, option, "f", "--force", under=under, code=3), "Read-only file system")
                expect_refused(run("bench", *FEW, option, "f", "--force", "--dry-run", under=under, code=3), "Read-only file system")
                assert pathlib.Path("f").read_text() == "old"
            else:
                run("bench", *FEW, option, "f", "--force", under=under)
                assert pathlib.Path("f").read_text() not in ("", "old")
            expect_only("f")
            os.remove("f")


def every_output_of_every_command_is_refused_first():
    """Options come from --help, so that a new command or option is tried, too."""
    how = mounts()
    run("bench", *FEW, "--json", "r.json", "--quiet")
    run("bench", *FEW, "--set", "profile.file=t", "--quiet")
    pathlib.Path("log.jsonl").write_text('{"topk_ids": [0, 1]}\n')
    commands = {"bench": FEW, "verify": [CONFIG], "run": [CONFIG], "compare": ["r.json", "r.json"], "best": ["r.json"], "plot": ["r.json"],
                "import": ["r.json"], "doctor": [], "list": [], "status": [], "predict": [CONFIG, "--sweep", "ranks=8:64", "--link", "50GB/s,2us"],
                "tune": [CONFIG, "--budget", "5s"], "trace": ["merge", "t.json"], "routing": ["stats", "log.jsonl"],
                "config": None, "completion": None, "help": None, "version": None}
    for path in ("d", "bound"):
        os.mkdir(path)
    for path in ("f", "r"):
        pathlib.Path(path).write_text("old")
    bad = [("n" * 256, []), ("n" * 256 + "/r.json", []), ("none/r.json", [])]
    if how is not None:
        bad += [("d/new", []), ("d/f", ["--force"]), ("f", ["--force"]), ("bound/new", [])]
        mount = ("mount -t tmpfs none d && echo old >d/f && mount -o remount,ro d && for f in f bound; do "
                 'mount --bind $f $f && mount -o remount,ro,bind $f; done && exec "$@"')
        how = [*how, "sh", "-c", mount, "sh"]
    tried = 0
    known = set(re.findall(r"^ {2}([a-z]+)\b", run("--help").stdout.split("\n\n")[2], re.M))
    assert "bench" in known and known <= set(commands), known - set(commands)
    for command, args in commands.items():
        if args is None:
            continue
        for option in re.findall(r"^ +(?:-., )?(--[a-z-]+) (?:FILE|DIR) ", run(command, "--help").stdout, re.M):
            for path, force in bad if option != "--plugin-path" else []:
                if option == "--out-dir" and path == "none/r.json":  # creates missing folders
                    path = "f/none"
                done = subprocess.run([*(how or []), EPA2A, command, *args, option, path, *force], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                      text=True, timeout=120, check=False)
                assert done.returncode in (2, 3), (command, option, path, done)
                expect_refused(done, f"{option} {path[:40]}")
                tried += 1
    assert tried > 80, tried
    for verb in ("bench", "verify", "run"):
        for path in ("n" * 256, "none/t", *(("d/t", "bound/t") if how else ())):
            done = subprocess.run([*(how or []), EPA2A, verb, CONFIG, "--set", f"profile.file={path}"], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True, timeout=120, check=False)
            assert done.returncode in (2, 3) and done.stdout == "" and f"profile.file: {path[:40]}" in done.stderr, done


def documents_of_a_folder_are_refused_first():
    for name in ("results.jsonl", "results.csv", "results.md"):
        os.makedirs(f"o/{name}/x")
        expect_refused(run("bench", *FEW, "--out-dir", "o", "--force", code=2), f"--out-dir o/{name}: that is a folder")
        shutil.rmtree("o")


def files_in_a_folder_that_takes_none_are_written_in_place():
    """docker run --read-only -v $PWD/f:/f"""
    how = mounts()
    if how is None:
        return
    os.mkdir("d")
    pathlib.Path("f").write_text("old")
    mount = 'mount -t tmpfs none d && touch d/f && mount --bind f d/f && mount -o remount,ro,bind d && exec "$@"'
    under = [*how, "sh", "-c", mount, "sh"]
    run("bench", *FEW, "--json", "d/f", "--force", under=under)
    json.loads(pathlib.Path("f").read_text())
    expect_refused(run("bench", *FEW, "--json", "d/new", under=under, code=3), "cannot write into the folder d: Read-only file system")


def refused_system_calls_are_no_reason():
    how = mounts()
    if not has_seccomp():
        return
    for error in (errno.EPERM, errno.ENOSYS):
        def old(error=error):
            refuse_calls("faccessat2", "statx", error=error)
        run("bench", *FEW, "--json", "r.json", preexec_fn=old)
        run("bench", *FEW, "--json", "r.json", "--force", preexec_fn=old)
        if how is not None and os.geteuid() == 0:
            under = ["unshare", "-m", "sh", "-c", 'mount --bind r.json r.json && exec "$@"', "sh"]
            run("bench", *FEW, "--json", "r.json", "--force", under=under, preexec_fn=old)
        expect_only("r.json")
        os.remove("r.json")


def file_systems_without_locks_are_used():
    if not has_seccomp():
        return
    for error in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP):
        def no_locks(error=error):
            refuse_calls("fcntl", error=error, argument=6)  # F_SETLK
        done = run("bench", *FEW, "--out-dir", "d", "--force", preexec_fn=no_locks)
        assert "warning: --out-dir d: this file system has no locks" in done.stderr, done.stderr
        done = run("bench", *FEW, "--out-dir", "d", "--resume", preexec_fn=no_locks)


def a_lost_race_leaves_one_file():
    """A file that appears after the check stays, and the results of all runs are in one file beside it."""
    options = ["--json", "--csv", "--markdown"]
    with subprocess.Popen([EPA2A, "bench", CONFIG, "--set", "repeat=4", "--set", "bench.iterations=4000",
                           *(word for option in options for word in (option, f"out{option}"))],
                          stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
        # The program starts ranks after it has checked the outputs.
        ranks = pathlib.Path(f"/proc/{child.pid}/task/{child.pid}/children")
        while child.poll() is None and not ranks.read_text():
            time.sleep(0.001)
        for option in options:
            pathlib.Path(f"out{option}").write_text("precious")
        errors = child.communicate(timeout=120)[1]
    assert child.returncode == 3, errors
    assert all(pathlib.Path(f"out{option}").read_text() == "precious" for option in options)
    saved = set(re.findall(r"the result is in (\S+)", errors))
    expect_only(*(f"out{option}" for option in options), *saved)
    texts = [pathlib.Path(name).read_text("utf-8") for name in sorted(saved)]
    assert len(saved) == 3 and [len(json.loads(text)["results"]) for text in texts if text.startswith("{")] == [4], texts


def signals_leave_no_temporary_file():
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-qq", "-o", "/dev/null", "true"], check=False).returncode != 0:
        skipped.append("signals: no strace")
        return
    run("bench", *FEW, "--json", "../r.json", "--force", "--quiet")
    for name in ("HUP", "INT", "TERM"):
        number = {"HUP": 1, "INT": 2, "TERM": 15}[name]
        under = [strace, "-qq", "-o", "/dev/null", "-e", "trace=fsync", "-e", f"inject=fsync:signal={name}:when=1"]
        run("best", "../r.json", "--json", "b.json", under=under, code=-number)
        json.loads(pathlib.Path("b.json").read_text("utf-8"))
        expect_only("b.json")
        os.remove("b.json")


def a_signal_ends_writes_that_have_no_reader():
    """A full pipe as standard output, standard error or stream ends within 2 s of the signal, and the file gets the results."""
    for name in ("TERM", "INT", "HUP"):
        for full in ({"stdout"}, {"stdout", "stderr"}, {"stream"}):
            reading, writing = os.pipe()
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
            os.write(writing, b"x" * 4096)
            number = signal.Signals[f"SIG{name}"]
            stream = ["--json-lines", f"/dev/fd/{writing}"] if full == {"stream"} else []
            with subprocess.Popen([EPA2A, "bench", *FEW, "--json", "r.json", "--force", *stream], pass_fds=[writing],
                                  stdout=writing if "stdout" in full else subprocess.DEVNULL,
                                  stderr=writing if "stderr" in full else subprocess.DEVNULL) as child:
                for _ in range(6000):
                    if "pipe_w" in pathlib.Path(f"/proc/{child.pid}/wchan").read_text("utf-8"):
                        break
                    time.sleep(0.01)
                else:
                    skipped.append("writes without a reader: /proc has no wchan")
                    child.kill()
                    return
                child.send_signal(number)
                begun = time.monotonic()
                try:
                    code = child.wait(2)
                except subprocess.TimeoutExpired:
                    child.kill()
                    raise AssertionError(f"SIG{name} does not end a bench with a full {full}") from None
            assert code == (130 if name == "INT" else 143), (name, full, code, time.monotonic() - begun)
            assert len(json.loads(pathlib.Path("r.json").read_text("utf-8"))["results"]) == 1
            os.remove("r.json")
            os.close(reading)
            os.close(writing)


def control_characters_reach_no_file():
    """A terminal may show a document or a log later: names in them have no escape sequences."""
    name = "a\033[31mb"
    pathlib.Path(f"{name}.yaml").write_text(f"include: {CONFIG}\n", "utf-8")
    files = [word for option in DOCUMENTS for word in (option, f"out{option}")]
    logs = [run("bench", f"{name}.yaml", *FEW[1:], "--out-dir", "d", "--json", f"{name}.json", *files[2:])]
    logs += [subprocess.run([EPA2A, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=120, check=False) for words in (
        ["bench", f"{name}.json"], ["compare", f"{name}.json", f"{name}.json", "--force"], [name], ["help", name], ["list", name],
        ["bench", f"--{name}"], ["import", f"{name}.yaml"], ["best", name])]
    texts = {" ".join(log.args[1:3]): log.stdout + log.stderr for log in logs}
    texts.update({str(path): path.read_text("utf-8") for path in pathlib.Path(".").rglob("*") if path.is_file() and path.suffix != ".yaml"})
    raw = [where for where, text in texts.items() if "\033" in text]
    assert not raw, f"escape sequences are in {raw}"


def descriptors_of_the_shell_are_written():
    def shell(command, code=0):
        done = subprocess.run(["sh", "-c", command, EPA2A, *FEW], stderr=subprocess.PIPE, text=True, timeout=120, check=False)
        assert done.returncode == code, (command, done.stderr)
        return done.stderr
    for path, to in (("/dev/stdout", ">f"), ("-", ">f"), ("/dev/fd/1", ">f"), ("/proc/self/fd/1", ">f"), ("/dev/stderr", "2>f"), ("/dev/fd/7", "7>f")):
        shell(f'"$0" bench "$@" --quiet --json {path} --force {to}')
        json.loads(pathlib.Path("f").read_text("utf-8"))
    shell('{ echo first; "$0" bench "$@" --quiet --json /dev/stdout; } >f')
    assert pathlib.Path("f").read_text("utf-8").startswith("first\n{")
    assert "--json -" in shell('"$0" bench "$@" --json f --force >f', 2)
    assert "descriptor 9" in shell('"$0" bench "$@" --json /dev/fd/9', 2)
    assert "both standard output" in shell('"$0" bench "$@" --json - --csv /dev/stdout', 2)


def a_folder_deeper_than_path_max_is_written():
    top = os.open(".", os.O_RDONLY)
    try:
        for _ in range(25):
            os.mkdir("d" * 200)
            os.chdir("d" * 200)
        run("bench", *FEW, "--json", "r.json", "--out-dir", "o")
        run("best", "r.json", "--json", "b.json")
        expect_only("b.json", "o", "r.json")
    finally:
        os.fchdir(top)
        os.close(top)


for ignored in signal.SIGINT, signal.SIGHUP:  # nohup and a shell's background jobs ignore them, and epa2a would, too
    signal.signal(ignored, signal.SIG_DFL)
tried = 0
for promise in [names_of_255_bytes_are_written, mount_points_are_written_in_place, every_output_of_every_command_is_refused_first,
                documents_of_a_folder_are_refused_first, files_in_a_folder_that_takes_none_are_written_in_place,
                refused_system_calls_are_no_reason, file_systems_without_locks_are_used, a_lost_race_leaves_one_file,
                signals_leave_no_temporary_file, a_signal_ends_writes_that_have_no_reader, control_characters_reach_no_file,
                descriptors_of_the_shell_are_written, a_folder_deeper_than_path_max_is_written]:
    with tempfile.TemporaryDirectory(prefix="epa2a-outputs-") as top_folder:
        os.mkdir(f"{top_folder}/cwd")
        os.chdir(f"{top_folder}/cwd")
        promise()
        os.chdir("/")
    tried += 1
    print(promise.__name__.replace("_", " "))
print(*sorted(set(skipped)), sep="\n")
