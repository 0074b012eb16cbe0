#!/usr/bin/env python3
"""documented.py EPA2A SOURCE BUILD [PAGE...]: every command in CONTRIBUTING.md, share/README.md, the help topics and
the man pages runs and ends as it should. They run one after the other in a folder with the files of a checkout and of
a reader: configs/, the build, the YAML that the text shows, earlier results. Only --set shortens runs, to few
iterations and short tokens; commands with many processes run with --dry-run. A command that needs more than this
machine has, or that builds the project, is skipped and listed with the reason. readme.sh runs the commands of
README.md."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

from man import rendered

FEW = " ".join(f"--set {key}" for key in ("bench.iterations=5", "bench.warmup=1", "verify.iterations=2",
                                          "run.iterations=2"))
NARROW = "--set moe.hidden=512"
SHORT = NARROW + " --set moe.max_tokens=8"
COMMAND = re.compile(r"(?:\w+=\S+ )*(?:(?:[\w./-]*/)?epa2a|mpirun|srun|torchrun|cc|\. <\(epa2a) ")
CODES = {"compare": (0, 10), "bench --threshold": (0, 10), "status": (0, 2)}
BUILDS = ("meson", "ninja", "git ", "apt-get", "./", ".ci/")
LACKS = re.compile(r"is not part of this build|no GPU|CUDA|needs the packages? \w+")
PROCESSES = 4  # commands with more processes make only the checks before ranks start


def of_markdown(path):
    """(command, the YAML that was shown last before it)"""
    shown = ""
    for kind, text in re.findall(r"^```(\w*)\n(.*?)^```", path.read_text("utf-8"), re.M | re.S):
        if kind == "yaml":
            shown = text
        for line in text.splitlines() if kind in ("console", "sh") else []:
            if kind == "sh" or line.startswith("$ "):
                yield re.sub(r"\s+# .*", "", line.removeprefix("$ ")), shown


def of_help(epa2a):
    overview = subprocess.run([epa2a, "__complete", "help", ""], capture_output=True, text=True, check=True).stdout
    for topic in (line.split("\t")[0] for line in overview.splitlines()):
        text = subprocess.run([epa2a, "help", topic], capture_output=True, text=True, check=True).stdout
        if "\n  type " in text:
            continue  # a key; examples.py covers its example
        for line in re.findall(r"^ {2,}(\S.*)$", text, re.M):
            if COMMAND.match(line):
                yield re.split(r" {2,}", line)[0], ""


def of_page(page):
    text = rendered(page)
    for section in re.findall(r"^EXAMPLES\n(.*?)^\S", text, re.M | re.S):
        for line in re.findall(r"^ {7}(\S.*)$", section, re.M):
            if COMMAND.match(line):
                yield line, ""


class Reader:
    """A user with a checkout and a folder with his own files."""
    ran = {}  # of all readers: commands and their exit codes

    def __init__(self, work, epa2a, source, build):
        self.work, self.epa2a = work, epa2a
        self.env = {**os.environ, "PATH": f"{work}/bin:{os.environ['PATH']}", "OMPI_ALLOW_RUN_AS_ROOT": "1",
                    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
                    "PKG_CONFIG_PATH": f"{work}/pkgconfig", "PWD": str(work)}
        (work / "pkgconfig").mkdir()
        (work / "pkgconfig/epa2a-plugin.pc").write_text(
            f"Name: epa2a-plugin\nDescription: not installed\nVersion: 0\nCflags: -I{source}/include\n")
        for folder in ("bin", "old", "new"):
            (work / folder).mkdir()
            (work / folder / "epa2a").symlink_to(epa2a)
        for name, to in (("configs", f"{source}/configs"), ("tests", f"{source}/tests"), ("build", build)):
            (work / name).symlink_to(to)
        for skeleton in pathlib.Path(source, "share").glob("skeleton_*.c"):
            shutil.copy(skeleton, work)
        shutil.copy(f"{source}/tests/cli/import/low_latency.txt", work / "deepep.log")
        (work / "response.json").write_text(json.dumps({"choices": [{"routed_experts": [[[1, 2]], [[3, 4]]]}]}))
        (work / "hosts").write_text("localhost slots=64\n")
        (work / "routes.jsonl").write_text("".join(
            json.dumps({"topk_ids": [(t + 7 * k) % 64 for k in range(8)], "topk_weights": [0.125] * 8}) + "\n"
            for t in range(2048)))
        (work / "x.yaml").write_text(f"include: {source}/configs/small.yaml\n")
        self.run(f"epa2a bench x.yaml {FEW} {NARROW} --json was.json --json-lines was.jsonl --out-dir was", check=True)
        self.run(f"epa2a run x.yaml {FEW} {NARROW} --set profile=x", check=True)

    def run(self, command, check=False):
        return subprocess.run(["bash", "-c", command], cwd=self.work, env=self.env, capture_output=True, text=True,
                              check=check, timeout=200, stdin=subprocess.DEVNULL)

    def copy(self, have, name):
        if (self.work / name).exists():
            return
        (self.work / name).parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (self.work / have).is_dir() else shutil.copy)(self.work / have, self.work / name)

    def provide(self, command, shown):
        """What the reader has before he types this; returns it with his names for FILE and the like."""
        verb = (re.findall(r"epa2a (\w+)", command) + [""])[0]
        traces = verb == "trace"
        for placeholder, name in (("FILE", "mine.json" if traces else "mine.yaml"), ("RESULTS", "was.json"),
                                  ("DIR", "dir"), ("DIR1", "was"), ("DIR2", "dir")):
            command = re.sub(rf"(?<![\w=-]){placeholder}(?:\.\.\.)?(?!\w)", name, command)
        command = command.replace("--out mine.json", "--out merged.json")
        for name in re.findall(r"(?<!-o )(?<![\w/.$])[\w-]+\.yaml", command):
            if not (self.work / name).exists():
                (self.work / name).write_text(shown or (self.work / "x.yaml").read_text())
        if verb not in ("bench", "best", "compare", "plot", "trace"):
            return verb, command
        inputs = [word for word in re.sub(r"(?<!\S)--?[\w-]+ \S+", "", command).split()[2:]
                  if re.fullmatch(r"[\w/.-]+", word)]
        if verb == "bench":  # a result in place of experiments
            inputs = [name for name in inputs if name == "dir" or name.endswith(".json")]
            verb = "bench --threshold" if "--threshold" in command else verb
        for name in inputs:
            have = {"": "was", ".json": "x.json" if traces else "was.json", ".jsonl": "was.jsonl"}
            end = pathlib.Path(name).suffix
            # Inputs of a comparison must be comparable with the existing one.
            others = [other for other in inputs if (self.work / other).exists() and other.endswith(end)]
            if end in have and name not in ("check", "summary", "view", "merge"):
                self.copy(others[0] if verb == "compare" and others else have[end], name)
        return verb, command

    def why_not(self, command):
        """Why this is not run here; None: it is."""
        words = [word for word in command.split() if not re.match(r"\w+=", word)]
        if command.startswith(BUILDS) or words[0].startswith(BUILDS):
            return "builds or tests the project"
        if words[0] in ("srun", "torchrun"):
            return "needs several hosts"
        if words[0] == "compute-sanitizer":
            return "needs a GPU"
        sources = [word for word in words if word.endswith(".c") and not (self.work / word).exists()]
        if words[0] == "cc" and sources:
            return f"needs the reader's {sources[0]}"
        if "plugin-path $PWD" in re.sub(r"\$PWD/", "", command) and not list(self.work.glob("epa2a-*.so")):
            return "needs the reader's plugin"
        if not words[0].startswith(".") and shutil.which(words[0], path=f"{self.work}/bin:{os.environ['PATH']}") is None \
                and not (self.work / words[0]).exists():
            return f"there is no {words[0]}"
        return None

    def try_one(self, example, shown):
        verb, command = self.provide(example, shown)
        why = self.why_not(command)
        if why:
            return "skipped", why
        processes = re.match(r"mpirun .*?-n (\d+)", command)
        few = FEW + ("" if "allgather" in command or "ag_gemm" in command else f" {NARROW}") + (" --dry-run" if processes and int(processes[1]) > PROCESSES else "")
        command = re.sub(r"(epa2a (?:run|bench|verify))\b", rf"\1 {few}", command, count=1)
        for verb_that_measures in ("compare --run", "epa2a tune"):
            if verb_that_measures in command:
                command = re.sub(r" --budget \S+", "", command)
                command = command.replace(verb_that_measures, f"{verb_that_measures} {few} --budget 3s")
        command = re.sub(r"epa2a predict (?!\S+\.json)", f"epa2a predict {SHORT} ", command)
        # A command that only reads configs/ and leaves no file need not run for each document that
        # shows it.
        mine = re.search(r"-o |--json|--out|[|>;$]", command) or re.search(r"(?<!\S)(?!configs/)\S+\.(?:yaml|jsonl?)", command)
        if not mine and self.ran.get(command) is not None:
            return "ran", f"{self.ran[command]}, as before"
        done = self.run(command)
        if "a turn takes" in done.stderr:  # the budget is too short without a free core
            done = self.run(command.replace("--budget 3s", "--budget 100s"))
        lacks = LACKS.search(done.stderr) if done.returncode == 3 else None
        if lacks:
            return "skipped", "here: " + lacks[0]
        if done.returncode in CODES.get(verb, (0,)):
            self.ran[command] = done.returncode
            return "ran", done.returncode
        return "FAILED", f"exit code {done.returncode}\n  {command}\n{done.stdout[-500:]}{done.stderr[-2000:]}"


def main(epa2a, source, build, *pages):
    epa2a, commands = os.path.abspath(epa2a), []
    for name in ("CONTRIBUTING.md", "share/README.md"):
        commands += [(name, *found) for found in of_markdown(pathlib.Path(source, name))]
    commands += [("help", *found) for found in of_help(epa2a)]
    if shutil.which("groff"):
        for page in pages:
            commands += [(pathlib.Path(page).name, *found) for found in of_page(page)]
    failed, skipped = 0, 0
    for document in dict.fromkeys(where for where, *_ in commands):
        with tempfile.TemporaryDirectory() as folder:
            reader = Reader(pathlib.Path(folder).resolve(), epa2a, source, build)
            for where, example, shown in commands:
                if where != document:
                    continue
                what, said = reader.try_one(example, shown)
                print(f"{what:8} {where}: {example}: {said}", flush=True)
                failed += what == "FAILED"
                skipped += what == "skipped"
    print(f"{len(commands)} examples, {skipped} skipped, {failed} failures")
    assert len(commands) - skipped >= 20 and {"CONTRIBUTING.md", "help"} <= {where for where, *_ in commands}, commands
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
