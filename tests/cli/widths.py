#!/usr/bin/env python3
"""widths.py EPA2A PAGE...: help, list and the lists of models and configurations have lines of 80 columns, or of the
terminal's width, unless a single word is longer; no help text, and no line of a man page, has a full stop twice."""
import fcntl
import os
import pathlib
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios

TWICE = re.compile(r"(?<![./\w\]])[^\s.]*[^\s./][.][.](?![./\w])")  # "verify..", and neither "a .. b" nor "FILE..."


def asked(epa2a, *args):
    return subprocess.run([epa2a, *args], capture_output=True, text=True, check=True, stdin=subprocess.DEVNULL).stdout


def on_terminal(columns, *command):
    """Returns the output of a command on a terminal of that width."""
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    job = subprocess.Popen(command, stdout=child, stdin=subprocess.DEVNULL, stderr=child)
    os.close(child)
    out = b""
    while True:
        try:
            data = os.read(parent, 65536)
        except OSError:
            data = b""
        if not data:
            break
        out += data
    os.close(parent)
    assert job.wait() == 0, command
    return out.decode().replace("\r\n", "\n")


def too_long(text, columns):
    """Lines beyond the width that could have been folded: they have two words behind their indentation. A command that is
    an example is to be copied, and stays whole."""
    return [line for line in text.splitlines()
            if len(line) > columns and not line.startswith("  example   ") and len(line.split()) > 1 and len(line.split()[-1]) + len(line) - len(line.lstrip()) < columns]


def main(epa2a, *pages):
    failed = 0
    topics = [line.split("\t")[0] for word in ("", "a.", "b.") for line in asked(epa2a, "__complete", "help", word).splitlines()]
    keys = re.findall(r"^  ([a-z]\w*\.\w+) ", asked(epa2a, "help"), re.M)
    commands = re.findall(r"^  ([a-z]+) ", asked(epa2a, "--help"), re.M)
    assert len(topics) > 60 and len(keys) > 60 and len(commands) > 15, (topics, keys, commands)
    asks = [["--help"], ["help"], ["list"], ["list", "models"], ["list", "configs"], ["help", "o"]]
    asks += [[command, "--help"] for command in commands] + [["help", word] for word in dict.fromkeys(topics + keys)]
    for ask in asks:
        text = asked(epa2a, *ask)
        for line in too_long(text, 80):
            print(f"epa2a {' '.join(ask)}: a line of {len(line)} columns: {line}")
            failed += 1
        for found in TWICE.findall(text):
            print(f"epa2a {' '.join(ask)}: a full stop twice: {found}")
            failed += 1
    for columns in (60, 120):
        for ask in (["--help"], ["help", "comparing"], ["list"], ["help", "bench"], ["list", "configs"]):
            text = on_terminal(columns, epa2a, *ask)
            for line in too_long(text, columns):
                print(f"epa2a {' '.join(ask)}: a line of {len(line)} columns on a terminal of {columns}: {line}")
                failed += 1
            if columns == 120 and max(map(len, text.splitlines())) <= 100 and ask != ["list"]:
                print(f"epa2a {' '.join(ask)}: a terminal of 120 columns is not used")
                failed += 1
        words = " ".join(on_terminal(columns, epa2a, "help", "comparing").replace("\\\n", " ").split())
        if words != " ".join(asked(epa2a, "help", "comparing").replace("\\\n", " ").split()):
            print(f"epa2a help comparing: other words on a terminal of {columns} columns")
            failed += 1
    for page in pages:
        text = pathlib.Path(page).read_text(encoding="utf-8").replace("\\&", "").replace("\\-", "-")
        for found in TWICE.findall(re.sub(r"\\f[BIR]", "", text)):
            print(f"{pathlib.Path(page).name}: a full stop twice: {found}")
            failed += 1
        if shutil.which("groff") is None:
            continue
        shown = subprocess.run(["groff", "-mandoc", "-Tutf8", "-Kutf8", "-rLL=80n", "-P-c", "-P-b", "-P-u", "-P-o", page],
                               capture_output=True, check=True).stdout.decode()
        for line in too_long(shown, 80):
            print(f"{pathlib.Path(page).name}: a line of {len(line)} columns: {line}")
            failed += 1
    print(f"{len(asks)} pages of help, {len(pages)} man pages, {failed} failed")
    return failed != 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
