#!/usr/bin/env python3
"""planted.py CHECK: a check of this folder finds a planted defect, and passes the same tree without it."""
import contextlib
import io
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import borders
import calls
import headers
import keys
import messages
import names
import sources
import subjects
import words

HEADER = "/* Rows of a rank. */\n#ifndef ROWS_H\n#define ROWS_H\nint rows_count(void);\n#endif\n"
SOURCE = "/* Rows of a rank. */\n#include \"rows.h\"\n\nint rows_count(void)\n{\n    return 1;\n}\n"


def write_tree(root, files):
    for name, text in files.items():
        path = pathlib.Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def run(check, *args):
    """Returns the exit code of a check, and its output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = check(*args)
    return code, out.getvalue()


def expect(good, bad, code, text):
    """Compares the outcome without the defect (`good`) and with it."""
    assert good[0] == 0, f"fails without a defect: {good[1]}"
    assert bad[0] == code and text in bad[1], f"expected exit code {code} and '{text}': {bad}"


def with_tree(check, files, *args):
    with tempfile.TemporaryDirectory() as root:
        write_tree(root, files)
        return run(check, root, *args)


def plant_words():
    for _, pattern, bad, good in words.PATTERNS:
        assert pattern.search(bad) and words.find_hits(bad), f"not found: {bad}"
        assert not words.find_hits(good), f"found: {good}"
    comment = "/* Counts the rows. */\n"
    expect(with_tree(words.main, {"src/a/x.c": comment * 120}),
           with_tree(words.main, {"src/a/x.c": comment * 120 + "/* What is sent. */\n" * 2}), 1, "src/a: 16.4 hits")
    expect(with_tree(words.main, {"README.md": "Counts the rows.\n"}),
           with_tree(words.main, {"README.md": "Counts what is sent.\n"}), 1, "README.md: 250.0 hits")
    expect(with_tree(words.main, {"src/a/x.c": comment}),
           with_tree(words.main, {"src/a/x.c": comment + "/* What is sent. */\n"}), 1, "all folders")


def plant_headers():
    good = {"src/a/rows.h": HEADER, "src/a/rows.c": SOURCE}
    other = SOURCE.replace("rows_count", "rows_free")
    two = {"src/a/rows.h": HEADER.replace("#endif", "__attribute__((cold)) int rows_free(void);\n#endif"),
           "src/a/rows.c": SOURCE, "src/a/free.c": other}
    expect(with_tree(headers.main, good), with_tree(headers.main, two), 1, "rows_free of src/a/free.c")
    expect(with_tree(headers.main, good), with_tree(headers.main, {"src/a/rows.h": HEADER, "src/a/count.c": SOURCE}),
           1, "src/a/rows.h")


def plant_names():
    good = {"src/a/rows.h": HEADER, "src/a/rows.c": SOURCE, "README.md": "Calls `rows_count`.\n"}
    expect(with_tree(names.main, good), with_tree(names.main, {**good, "README.md": "Calls `rows_sum`.\n"}),
           1, "README.md:1: name rows_sum")
    expect(with_tree(names.main, good),
           with_tree(names.main, {**good, "src/a/x.c": "/* See rows_sum(). */\n"}), 1, "src/a/x.c:1: name rows_sum")
    good["README.md"] = "Counts in `rows.c` of `src/a/rows.h` and `../a/rows.h`.\n"
    for bad in ("row.c", "src/b/rows.c", "../rows.py"):
        expect(with_tree(names.main, good),
               with_tree(names.main, {**good, "README.md": f"Counts in `{bad}`.\n"}), 1, f"README.md:1: file {bad}")
    expect(with_tree(names.main, good),
           with_tree(names.main, {**good, "src/a/x.c": "/* As in src/a/row.c. */\n"}), 1, "src/a/x.c:1: file src/a/row.c")
    table = {"src/a/t.c": "const struct section experiment_sections[] = {\n    SECTION(moe, hidden),\n};\n"}
    expect(with_tree(names.main, {**table, "README.md": "Sets `moe.hidden`.\n"}),
           with_tree(names.main, {**table, "README.md": "Sets `moe.hiden`.\n"}), 1, "key moe.hiden")
    program = "#!/bin/sh\n[ $# = 1 ] && echo '  bench  measure'\necho '  --json FILE'\n"
    with tempfile.TemporaryDirectory() as root:
        write_tree(root, {"epa2a": program})
        path = pathlib.Path(root, "epa2a")
        path.chmod(0o755)
        good = {"README.md": "Run `epa2a bench --json`.\n"}
        expect(with_tree(names.main, good, path),
               with_tree(names.main, {"README.md": "Run `epa2a bench --jsn`.\n"}, path), 1, "option --jsn")
        expect(with_tree(names.main, good, path),
               with_tree(names.main, {"README.md": "Run `epa2a bnch`.\n"}, path), 1, "command of epa2a bnch")


def plant_calls():
    call = "void run(const struct epa_backend_plugin *plugin)\n{\n    plugin->open(NULL, NULL, NULL, NULL);\n}\n"
    good = {"src/lib/ep/ep.c": call, "src/tool/run.c": SOURCE + "/* Calls plugin->open(). */\n"}
    for bad in (call, call.replace("->open", "->create"), call.replace("plugin->open", "(*algorithm_of(x)->plan)")):
        for path in ("src/tool/run.c", "src/lib/api/moe.c"):
            expect(with_tree(calls.main, good), with_tree(calls.main, {**good, path: bad}), 1, f"{path}:3: calls")


def plant_messages():
    read = "int read_reason(const struct epa_error *err)\n{\n    return %s;\n}\n"
    good = {"src/a.c": read % "err->status == EPA_ERR_NOMEM", "plugins/common/b.c": read % "strcmp(err->key, EPA_LIMIT_FILES)"}
    for bad in ('strstr(err->text, "no memory") != NULL', "strstr(found.text, strerror(EMFILE)) != NULL",
                'strncmp(err->text, "fork", 4) == 0', "strncmp(err->text, stage, n) == 0",
                'strstr(r->err.text, "fork") != NULL'):
        for path in good:
            expect(with_tree(messages.main, good), with_tree(messages.main, {**good, path: read % bad}), 1, f"{path}:3: searches")
    pointer = "int read_reason(const struct epa_error *err)\n{\n    const char *x = \"a\", *why = r->err.text;\n\n    return %s;\n}\n"
    after = "int count_words(const char *why)\n{\n    return strchr(why, ' ') != NULL;\n}\n"
    good["src/a.c"] = pointer % 'printf("%s", why)' + after
    for bad in ("strncmp(why, stage, n) == 0", "strchr(why, ':') != NULL", "why[4] == ':'", 'strcmp(why, "fork") == 0'):
        expect(with_tree(messages.main, good), with_tree(messages.main, {**good, "src/a.c": pointer % bad + after}), 1,
               "src/a.c:5: searches")
    passed = "static bool names_rank(uint32_t rank, const char *text)\n{\n    text = %s;\n    return text != NULL;\n}\n" \
             "bool is_named(const struct rank *r)\n{\n    return names_rank(f(1, 2), r->err.text);\n}\n"
    good["src/a.c"] = passed % "text_clean(text)"
    expect(with_tree(messages.main, good), with_tree(messages.main, {**good, "src/a.c": passed % 'strstr(text, "rank ")'}), 1,
           "src/a.c:8: searches")


def plant_borders():
    good = {"src/tool/base/json.h": "#include <jansson.h>\n", "src/tool/report/results_json.c": '#include "base/json.h"\n',
            "src/tool/run/a.c": "/* The caller writes json_t. */\n"}
    for path, bad in (("src/tool/run/a.c", '#include "base/json.h"\n'), ("src/tool/session/a.h", "struct json_t;\nvoid a(json_t *);\n"),
                      ("src/lib/a.c", "#include <jansson.h>\n"), ("plugins/common/a.c", "#include <jansson.h>\n"),
                      ("src/tool/report/results_json.c", "#include <jansson.h>\n"), ("src/tool/report/results_json.c", "x = json_loadfd(fd, 0, 0);\n"),
                      ("src/tool/cli/compare_turns.c", '#include "base/json.h"\n'), ("src/tool/cli/side_result.c", "json_t *x;\n"),
                      ("src/tool/doctor/machine.h", '#include "base/json.h"\n'), ("src/tool/cli/cmd_list.c", "json_t *x;\n"),
                      ("src/tool/cli/list_models.c", '#include "base/json.h"\n'), ("src/tool/cli/list_configs.c", "json_t *x;\n"),
                      ("src/tool/cli/cmd_status.c", '#include "base/json.h"\n'), ("src/tool/report/table_json.c", "json_t *x;\n"),
                      ("src/tool/report/results_names.c", "json_t *x;\n"), ("src/tool/report/results.c", "json_t *x;\n"),
                      ("src/tool/report/results.h", "struct x {\n    const json_t *json;\n};\n"), ("src/tool/cli/repeat_result.c", "x = json_at(y, z);\n"), ("src/tool/report/process_results.c", "json_t *x;\n"),
                      ("src/tool/cli/documents.c", "x = json_loads(y, 0, NULL);\n"), ("src/tool/report/result_keys.c", '#include "base/json.h"\n'),
                      ("src/tool/report/fill_json.c", "x = json_text_at(y, z);\n"),
                      ("src/tool/result/warnings.c", '#include "base/json.h"\n'), ("src/tool/cli/cmd_bench.c", '#include "base/json.h"\n')):
        expect(with_tree(borders.main, good), with_tree(borders.main, {**good, path: bad}), 1, f"{path}:")
    good["src/tool/report/figures_json.h"] = '#include "base/json.h"\n'
    good["src/tool/trace/write.h"] = "struct text;\n"
    good["src/tool/result/result.h"] = '#include "trace/write.h"\n'
    bad = {"src/tool/trace/write.h": '#include "report/figures_json.h"\n'}
    expect(with_tree(borders.main, good), with_tree(borders.main, {**good, **bad}), 1,
           "src/tool/result/result.h: includes src/tool/trace/write.h -> src/tool/report/figures_json.h")


def plant_keys():
    table = 'static const struct epa_option %s[] = {\n    {.name = "%s"},\n    NUMBER(U32, "%s", x, y),\n};\n'
    fail = 'int x(void)\n{\n    return epa_fail_key(err, EPA_ERR_CONFIG, ok ? "%s" : "%s", "too few (%%u)", f(1, 2));\n}\n'
    good = {"src/a/experiment.c": table % ("top", "ranks", "nodes") + table % ("moe", "topk", "hidden"),
            "plugins/algorithm/a/a.c": table % ("options", "mode", "depth") + fail % ("ranks moe.hidden", "algorithm.mode"),
            "plugins/algorithm/b/b.c": table % ("options", "pull", "push")}
    for bad in ("rank", "moe.hiden", "moe.mode", "algorithm.pull", "ranks moe.ranks", "mode"):
        plugin = good["plugins/algorithm/b/b.c"].replace("pull", "put") + fail % ("moe.topk", bad)
        expect(with_tree(keys.main, good), with_tree(keys.main, {**good, "plugins/algorithm/b/b.c": plugin}),
               1, f"plugins/algorithm/b/b.c:7: {bad.split()[-1]} is no option")
    expect(with_tree(keys.main, good),
           with_tree(keys.main, {**good, "src/b.c": 'int b(void)\n{\n    return epa_fail(err, 0, "lower moe.topk");\n}\n'}),
           1, "src/b.c:3: moe.topk is in the message")
    path = 'static const char *const said[] = {\n    "{experiment.moe.topk} of {experiment.%s}",\n};\n'
    expect(with_tree(keys.main, {**good, "src/b.c": path % "ranks"}), with_tree(keys.main, {**good, "src/b.c": path % "moe.ranks"}),
           1, "src/b.c:2: experiment.moe.ranks is no option")


def plant_subjects():
    if shutil.which("git") is None:
        print("skipped: git is not installed")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as root:
        os.environ["GIT_DIR"] = hook = os.path.join(root, "repository of a hook")

        def git(*args):
            return subprocess.run(["git", "-C", root, *args], stdout=subprocess.PIPE, text=True, check=True,
                                  env=sources.git_environment()).stdout.strip()

        def commit(subject):
            git("-c", "user.name=x", "-c", "user.email=x@x", "commit", "-q", "--allow-empty", "-m", subject)

        git("init", "-q")
        commit("Begin.")
        start = git("rev-parse", "HEAD")
        assert run(subjects.main, root)[0] == 77, "runs without the history"
        commit("src/cli, man: name the option --json")
        good = run(subjects.main, root, start)
        for subject, text in (("Rewrite the rows", "form"), ("rows: count them.", "form"),
                              ("rows: " + "count " * 15, "characters"), ("rows: count what is sent", "clause")):
            commit(subject)
            expect(good, run(subjects.main, root, start), 1, text)
            git("reset", "-q", "--hard", "HEAD~")
        assert not os.path.exists(hook), "git used GIT_DIR"


if __name__ == "__main__":
    globals()["plant_" + sys.argv[1]]()
