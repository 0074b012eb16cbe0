#!/usr/bin/env python3
"""borders.py ROOT: JSON stays at the borders of the program.

The library, plugins, and the folders of the program that read experiments and run them pass structs. They neither
include jansson, directly, by base/json.h or by other headers, nor name its types and functions. Of the other folders only
the listed files read or write documents. base/json.h alone includes jansson.h, and READERS alone parse JSON. Parts of the
program pass no JSON to each other through files in memory or sockets."""
import re
import sys

import sources

WITHOUT = [("src", "lib"), ("plugins",), *(("src", "tool", name) for name in
                                           ("caller", "config", "experiment", "launch", "result", "run", "session"))]
JSON = re.compile(r'#include [<"](?:jansson\.h|base/json\.h)[>"]|\bjson_(?!lines\b)\w+')
PARSED = re.compile(r"\bjson_(?:load\w*|dumpfd)\b")
PASSED = re.compile(r"\bjson_(?:dumpfd|loadfd)\b")
INCLUDE = re.compile(r'#include "(\w+/[\w/.]+)"')
WRAPPER = "src/tool/base/json.h"  # the only file that includes jansson
# Files that read or write documents.
DOCUMENTS = {
    "src/tool/cli": """
        cmd_version.c
        compared_json.c compared_json.h documents.c documents.h experiment_schema.c list_json.c list_json.h
        main.c predict_json.c predict_json.h result_schema.c status_json.c status_json.h
        tune_json.c tune_json.h""".split(),
    "src/tool/report": """
        best_json.c best_json.h figures_json.c figures_json.h
        origin_json.c origin_json.h result_json.c
        result_json.h results_json.c results_json.h stage_names.c summary_json.c summary_json.h""".split(),
    "src/tool/base": ["json.c", "json.h", "program_data.c"],
    "src/tool/doctor": ["doctor_json.c", "doctor_json.h"],
    "src/tool/op": [],
    "src/tool/op/moe": ["routing_file.c", "routing_log_json.c", "routing_log_json.h"],
    "src/tool/trace": ["read.c", "summary.c", "trace.h", "trace_json.c", "trace_json.h", "write.c"],
}


# Files that parse JSON: texts of users, of the build, and values in the notation of JSON.
READERS = """
    src/tool/base/program_data.c src/tool/cli/experiment_schema.c src/tool/cli/result_schema.c src/tool/op/moe/routing_file.c
    src/tool/report/best_json.c src/tool/report/origin_json.c src/tool/report/results_json.c src/tool/report/stage_names.c
    src/tool/trace/read.c""".split()


def find_includes(files):
    """Returns the headers that each file includes, by path."""
    paths = {str(file.path) for file in files}
    return {str(file.path): [owner + name for name in INCLUDE.findall(file.text)
                             for owner in ("src/tool/", "src/lib/") if owner + name in paths] for file in files}


def find_route(includes, path, seen):
    """Returns the headers by which a file includes base/json.h, or None."""
    seen.add(path)
    for header in includes.get(path, ()):
        if header == WRAPPER:
            return [header]
        route = find_route(includes, header, seen) if header not in seen else None
        if route is not None:
            return [header, *route]
    return None


def main(root):
    checked, wrong = 0, []
    files = [file for file in sources.read_tree(root) if file.path.parts[0] in ("src", "plugins") and file.suffix in sources.C]
    includes = find_includes(files)
    for file in files:
        checked += 1
        code, folder = file.code(), "/".join(file.path.parts[:-1])
        without = any(file.path.parts[:len(parts)] == parts for parts in WITHOUT)
        inside = without or folder in DOCUMENTS and file.path.name not in DOCUMENTS[folder]
        use = (JSON if inside else PASSED if str(file.path) in READERS else PARSED).search(code)
        route = find_route(includes, str(file.path), set()) if without else None
        if use is not None:
            wrong.append(f"{file.path}:{code.count(chr(10), 0, use.start()) + 1}: uses {use.group()}; pass a struct")
        elif route is not None:
            wrong.append(f"{file.path}: includes {' -> '.join(route)}; pass a struct")
        elif "#include <jansson.h>" in code and str(file.path) != WRAPPER:
            wrong.append(f"{file.path}: includes jansson.h; use base/json.h")
    for message in wrong:
        print(message)
    print(f"{checked} files, {len(wrong)} uses of JSON inside of the borders")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
