"""Source files, comments and documents of a tree, for the checks of this folder."""
import os
import pathlib
import re
import shutil
import subprocess

C = (".c", ".h", ".cu", ".cuh", ".cpp")
HASH = (".py", ".sh", ".build", ".yaml", ".case")
SKIPPED = ("corpus",)  # inputs of fuzzers
# A string, a character, or a comment: a comment inside a string is part of the string.
C_TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|/\*.*?\*/|//[^\n]*', re.S)


class File:
    """A text file of the tree; `path` is relative to the root."""

    def __init__(self, root, path):
        self.path = path
        self.text = (root / path).read_text("utf-8", errors="replace")
        # The suffix of what meson makes of NAME.cpp.in.
        self.suffix = pathlib.PurePosixPath(path.stem).suffix if path.suffix == ".in" else path.suffix

    def is_script(self):
        first = self.text.split("\n", 1)[0]
        return first.startswith("#!") and re.search(r"sh\b|python", first) is not None

    def is_document(self):
        """READMEs and notes, man pages, and help topics."""
        return self.suffix == ".md" or self.path.parts[0] == "man" and self.path.suffix == ".in" or \
            self.path.name == "topics.txt"

    def has_comments(self):
        return self.suffix in C + HASH or self.is_script()

    def code(self):
        """The text without comments; line numbers stay."""
        if self.suffix in C:
            return C_TOKEN.sub(lambda t: "\n" * t.group().count("\n") if t.group()[0] == "/" else t.group(), self.text)
        return "\n".join("" if re.match(r"\s*#(?!!)", line) else line for line in self.text.split("\n"))

    def comments(self):
        """Yields (line number, line) of all comments."""
        if self.suffix in C:
            for token in C_TOKEN.finditer(self.text):
                if token.group()[0] == "/":
                    first = self.text.count("\n", 0, token.start()) + 1
                    for number, line in enumerate(token.group().split("\n")):
                        yield first + number, re.sub(r"^\s*(/\*+|//|\*(?!/))?\s?|\s*\*/$", "", line)
        elif self.has_comments():
            for number, line in enumerate(self.text.split("\n"), 1):
                comment = re.match(r"\s*#(?!!)\s?(.*)", line)
                if comment:
                    yield number, comment.group(1)

    def prose(self):
        """Yields (line number, line) of a document, without blocks of code."""
        fenced = False
        for number, line in enumerate(self.text.split("\n"), 1):
            if line.lstrip().startswith("```"):
                fenced = not fenced
            elif not fenced:
                yield number, line

    def english(self):
        return self.prose() if self.is_document() else self.comments()


def git_environment():
    """Returns the environment without variables of git: in a hook, GIT_DIR precedes the folder of -C."""
    return {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}


def run_git(root, *args):
    """Returns the output of git in the checkout `root`; None: git failed, or is not installed."""
    if shutil.which("git") is None:
        return None
    done = subprocess.run(["git", "-c", "safe.directory=*", "-C", root, *args], capture_output=True, text=True,
                          env=git_environment())
    return done.stdout if done.returncode == 0 else None


def read_tree(root):
    """Reads the files of a checkout that git tracks, or all files of a folder without git."""
    root = pathlib.Path(root)
    listed = run_git(root, "ls-files", "-z") or ""
    if listed:
        paths = [pathlib.PurePosixPath(path) for path in listed.split("\0") if path]
    else:
        paths = [pathlib.PurePosixPath(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]
        paths = [path for path in paths if not path.parts[0].startswith((".git", "build"))]
    wanted = C + HASH + (".md", ".in", ".txt", "")
    return [File(root, path) for path in sorted(paths)
            if not set(path.parts) & set(SKIPPED) and path.suffix in wanted and (root / path).is_file()]
