#!/usr/bin/env python3
"""man.py EPA2A PAGE...: man and groff have nothing to say against the pages, and all that the program
says of itself (commands, options, keys, choices, exit codes, variables) is in them."""
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SECTIONS = ["NAME", "DESCRIPTION", "EXIT STATUS", "ENVIRONMENT", "FILES", "EXAMPLES", "SEE ALSO"]


def asked(epa2a, *args):
    return subprocess.run([epa2a, *args], capture_output=True, text=True, check=True).stdout


def rendered(page):
    """As text without wrapping, every kind of dash as a minus."""
    done = subprocess.run(["groff", "-mandoc", "-Tutf8", "-Kutf8", "-rLL=2000n", "-P-c", "-P-b", "-P-u", "-P-o", page],
                          capture_output=True, check=True, text=True)
    return re.sub("[\u2010\u2011\u2212]", "-", done.stdout).replace("\u2019", "'")


def complaints(page):
    """What the renderers, and mandoc where it is, say on standard error."""
    commands = [["groff", "-ww", "-mandoc", "-Tutf8", "-z", page]]
    if shutil.which("man"):
        commands.append(["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page])
    if shutil.which("mandoc"):
        commands.append(["mandoc", "-T", "lint", "-W", "warning", page])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
                              env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "80"})
        said = done.stderr + (done.stdout if command[0] == "mandoc" else "")
        if done.returncode != 0 or said.strip():
            yield f"{' '.join(command)}: exit code {done.returncode}: {said[:500]}"


def main(epa2a, *pages):
    if shutil.which("groff") is None:
        print("SKIP: there is no groff here (package groff-base)")
        return 77
    failed = 0
    text = {}
    for page in pages:
        name = pathlib.Path(page).name
        text[name] = rendered(page)
        missing = [s for s in SECTIONS if not re.search(f"^{s}$", text[name], re.M)]
        for what in [*complaints(page), *(f"no section {s}" for s in missing)]:
            print(f"{name}: {what}")
            failed += 1

    # Experiments in the pages are valid.
    examples = [e for page in pages
                for e in re.findall(r"^\.nf\n(version: 1\n.*?)^\.fi", pathlib.Path(page).read_text(), re.M | re.S)]
    assert len(examples) > 1
    for example in examples:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(example)
            file.flush()
            done = subprocess.run([epa2a, "config", "check", file.name], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(f"an example is refused: {done.stderr}")
            failed += 1

    commands = re.findall(r"^  ([a-z]+) ", asked(epa2a, "--help"), re.M)
    options = [option for of in ("bench", "plot")
               for option in re.findall(r"^  ((?:-., )?--[a-z-]+)", asked(epa2a, of, "--help"), re.M)]
    codes = re.findall(r"^ +(\d+)  (.*)", asked(epa2a, "help", "exit-codes").replace("`", ""), re.M)
    variables = re.findall(r"^  (EPA2A_\w+)", asked(epa2a, "help", "environment"), re.M)
    keys = re.findall(r"^  ([a-z][\w.]+) ", asked(epa2a, "help"), re.M)
    plugins = re.findall(r"^  ([a-z0-9_]+) ", asked(epa2a, "list"), re.M)
    sections = re.findall(r"^([a-z]+): ", asked(epa2a, "help"), re.M)
    for plugin in plugins:
        keys += re.findall(r"^  ([a-z]+\.\w+) ", asked(epa2a, "help", plugin), re.M)
    assert len(commands) > 6 and len(options) > 10 and len(codes) > 9 and len(keys) > 60 and variables, keys
    wanted = {
        "epa2a.1": [rf"^ +{c}\b" for c in commands] + [rf"^ +{o}\b" for o in options]
        + [rf"^ +{code} +{re.escape(what)}" for code, what in codes] + [rf"^ +{v}\b" for v in variables],
        "epa2a-config.5": [rf"^ +{re.escape(k)}\b" for k in keys if k != "name"] + [rf"^ +{s}$" for s in sections],
        "epa2a-plugin.7": [rf"^ +{code} +{re.escape(what)}" for code, what in codes],
    }
    for key in keys:  # every choice as well
        block = re.search(r"^  choices .*\n(?:   .*\n)*", asked(epa2a, "help", key), re.M)
        for choice in re.findall(r"^  (?:choices|       )   (\S+) ", block[0] if block else "", re.M):
            wanted["epa2a-config.5"].append(rf"^ +{re.escape(choice)}\b")
    n = 0
    for name, patterns in wanted.items():
        for pattern in patterns:
            n += 1
            if not re.search(pattern, text[name], re.M):
                print(f"{name}: nothing matches {pattern}")
                failed += 1
    print(f"{len(pages)} pages, {n} names and sentences looked for, {failed} failures")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
