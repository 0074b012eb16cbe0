#!/usr/bin/env python3
"""keys.py ROOT: each key of an error is an option, and an error carries a key if its message names one.

A plugin names options of its own tables or of tables in plugins/common, and options of the
experiment. The program names options of any plugin and of the experiment. A message names an option in the form
`moe.hidden`. A path in a result, such as "experiment.moe.hidden", names an option, too: the text of a path that
does not exist is left out without an error."""
import re
import sys

import sources

# Functions that take a key, and the number of arguments before the key.
TAKES_KEY = {"epa_fail_key": 2, "epa_fail_stage": 2, "algo_fail_key": 2, "rank_fail_key": 2, "epa_fail_at": 1, "conn_word_at": 1}
CALL = re.compile(rf"\b({'|'.join(TAKES_KEY)}|(?:epa|algo|rank)_fail|epa_fail_errno)\(")
TOKEN = re.compile(r'"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|[(){}\[\],]|[^"\'(){}\[\],]+')
STRING = re.compile(r'"((?:\\.|[^"\\\n])*)"')
KEY = re.compile(r"[a-z][a-z_]*(\.[a-z][a-z0-9_]*)?")
NAMED = re.compile(r"(?<![\w.])[a-z]+\.[a-z][a-z0-9_]*\b")
# Names in tables and macros of plugins. Tables of the experiment, named after their sections.
NAME = re.compile(r'\.name = "(\w+)"')
TABLE = re.compile(r"\bstruct epa_option (\w+)\[\] = \{(.*?)^\};", re.M | re.S)
ROW = re.compile(r'(?:\.name = |[A-Z]\(\s*(?:[A-Z][A-Z0-9]*,\s*)?)"(\w+)"')
PLUGINS = ("algorithm", "backend", "launcher", "transport")
COMMON = ("common",)
PATH = re.compile(r"(?<![\w./])experiment\.([a-z][a-z_]*(?:\.[a-z][a-z0-9_]*)?)")
IMPORTED = ("collective", "collective.bytes", "data")  # in results that `epa2a import` makes
REPORTS = ("src", "tool", "report")  # errors about results, which have keys of their own


def arguments(code, at):
    """Returns the arguments of the call whose parenthesis opens before `at`."""
    out, depth = [""], 0
    for token in TOKEN.finditer(code, at):
        text = token.group()
        if text in ")}]" and depth == 0:
            return out
        depth += (text in "({[") - (text in ")}]")
        if text == "," and depth == 0:
            out.append("")
        else:
            out[-1] += text
    return out


class Options:
    def __init__(self, files):
        self.of_plugin, self.of_program, self.of_section = {}, set(), {}
        for file in files:
            parts, code = file.path.parts, file.code()
            if parts[0] == "plugins":
                self.of_plugin.setdefault(parts[1:3] if parts[1] in PLUGINS else COMMON, set()).update(NAME.findall(code))
                continue
            self.of_program |= set(NAME.findall(code))
            for table, rows in TABLE.findall(code):
                self.of_section.setdefault(table, set()).update(ROW.findall(rows))

    def has(self, key, parts):
        section, _, name = key.rpartition(".")
        if section not in PLUGINS:
            return name in self.of_section.get(section or "top", ())
        own = parts[1:3] if parts[:2] == ("plugins", section) else None
        return name == "name" or name in self.of_plugin.get(COMMON, ()) or \
            own is None and name in self.of_program or \
            any(name in names for plugin, names in self.of_plugin.items() if plugin == own or own is None and plugin[0] == section)


def main(root):
    files = [file for file in sources.read_tree(root) if file.path.parts[0] in ("src", "plugins") and file.suffix in sources.C]
    options, count, wrong = Options(files), 0, []
    for file in files:
        code = file.code()
        for call in CALL.finditer(code):
            def report(key, defect):
                wrong.append(f"{file.path}:{code.count(chr(10), 0, call.start()) + 1}: {key} {defect}")

            before = TAKES_KEY.get(call.group(1))
            found = arguments(code, call.end())
            if before is None:
                text = "".join(STRING.findall(",".join(found)))
                for key in NAMED.findall(text):
                    if options.has(key, file.path.parts) and file.path.parts[:3] != REPORTS:
                        report(key, "is in the message; use " + call.group(1) + "_key()")
            elif len(found) > before:
                for key in " ".join(STRING.findall(found[before])).split():
                    count += 1
                    if not KEY.fullmatch(key) or not options.has(key, file.path.parts):
                        report(key, "is no option")
        for string in STRING.finditer(code):
            for key in PATH.findall(string.group(1)):
                count += 1
                if key not in IMPORTED and key not in options.of_section and not options.has(key, file.path.parts):
                    wrong.append(f"{file.path}:{code.count(chr(10), 0, string.start()) + 1}: experiment.{key} is no option")
    for message in wrong:
        print(message)
    print(f"{count} keys of errors and paths, {len(wrong)} defects")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
