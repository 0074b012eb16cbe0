"""epa2a.report: the page states only conclusions that the statistics support."""

import html
import json
import random
import re
import shutil
import subprocess

import pytest

import made
from epa2a import report, results

V1 = {"experiment__algorithm__name": "ll_v1"}


def page_of(tmp_path, *runs, **options):
    return report.render(results.load(made.write(tmp_path / "r.json", *runs)), **options)


def answers_of(page):
    return [html.unescape(text) for text in re.findall(r'<p class="answer">(.*?)</p>', page)]


def test_an_undecided_run_is_never_as_fast(tmp_path):
    """Medians within 3 % with wide bounds decide nothing, whichever is less."""
    for seed in range(6):
        spread = random.Random(seed)
        page = page_of(tmp_path, made.run("a", 100, 7, 0.3, spread), made.run("b", 101, 7, 0.3, spread, **V1))
        (answer,) = answers_of(page)
        assert "undecided" in answer and "as fast" not in answer and "fastest" not in answer, answer
        assert 'class="text undecided"' in page


@pytest.mark.parametrize("runs", [1, 2, 3, 4, 5, 7])
def test_few_runs_support_no_conclusion(tmp_path, runs):
    """Bounds of few runs may lie apart without a difference, and may be close with one: two runs each do so in a third
    of all pairs."""

    def batch(name, median_us, **keys):
        return [made.run(f"{name} #{k + 1}", median_us + 0.1 * k, 1, 0, **keys) for k in range(runs)]

    (answer,) = answers_of(page_of(tmp_path, *batch("a", 100), *batch("b", 120, **V1)))
    assert ("is fastest" in answer) == (runs >= 4) and ("undecided" in answer) == (runs < 4), answer
    (answer,) = answers_of(page_of(tmp_path, *batch("a", 100), *batch("b", 101, **V1)))
    assert ("as fast" in answer) == (runs >= 5) and ("undecided" in answer) == (runs < 5), answer


def test_decided_runs_are_named(tmp_path):
    runs = [made.run("a", 100), made.run("b", 101, **V1), made.run("c", 200, experiment__algorithm__dedup=True)]
    (answer,) = answers_of(page_of(tmp_path, *runs))
    assert answer.startswith("8 tokens: ll_v2/shm, ") and "as fast: ll_v1/shm (+" in answer and "slower: ll_v2/shm" in answer
    (answer,) = answers_of(page_of(tmp_path, runs[0], runs[2]))
    assert "is fastest, before ll_v2/shm algorithm.dedup=true" in answer


def test_failed_runs_have_their_reason_and_no_part_in_conclusions(tmp_path):
    dead = made.run("dead", 1, status="died", error={"status": "died", "text": "rank 1 died <b>"}, **V1)
    page = page_of(tmp_path, made.run("a", 100), dead)
    assert "died: rank 1 died &lt;b&gt;" in page and "dead&#39; ended with status died" in page
    assert "ll_v1" not in "".join(answers_of(page))
    page = page_of(tmp_path, dead)
    assert answers_of(page) == [] and "died" in page


def test_text_of_results_is_escaped(tmp_path):
    name = "<script>alert(1)</script>{{ 7 * 7 }}\x1b[2J"
    page = page_of(tmp_path, made.run(name, 100, warnings=[name], machine={"cpu": name}), made.run("b", 1, run=name))
    assert "<script" not in page and "{{ 7 * 7 }}" in page and "\x1b" not in page
    assert not re.search(r'(?:href|src)="(?!data:image/svg)', page), "the page is self-contained"


@pytest.mark.parametrize("options, reason", [({"only": ("x*",)}, "x*")])
def test_an_empty_choice_is_refused(tmp_path, options, reason):
    with pytest.raises(results.ResultsError, match=re.escape(reason)):
        page_of(tmp_path, made.run("a", 1), **options)


def test_tables_fit_three_widths_and_paper(tmp_path):
    """A browser lays the page out; no part is wider than the window."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("there is no chromium")
    long = {"experiment__algorithm__" + "long_name_of_an_option": "x" * 60}
    page = page_of(tmp_path, *made.batch(3, 1), *made.batch(3, 1, **long), made.run("w" * 200, 1))
    frames = "".join(f'<iframe width="{width}" srcdoc="{html.escape(page)}"></iframe>' for width in (340, 768, 1400))
    script = """<script>onload = () => { document.title = [...document.querySelectorAll("iframe")].map((f) => {
        const d = f.contentDocument.documentElement, cells = [...d.querySelectorAll("td")];
        return [f.width, d.scrollWidth <= f.clientWidth, cells.every((c) => c.scrollWidth <= c.clientWidth + 1)];
    }).join(";") }</script>"""
    (tmp_path / "frames.html").write_text(f"<!doctype html><title></title>{script}{frames}")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile"]
    done = subprocess.run([*command, "--dump-dom", "--virtual-time-budget=20000", tmp_path / "frames.html"],
                          capture_output=True, text=True, check=True, timeout=240)  # fmt: skip
    assert re.search("<title>(.*?)</title>", done.stdout)[1] == "340,true,true;768,true,true;1400,true,true"
    (tmp_path / "page.html").write_text(page)
    subprocess.run([*command, f"--print-to-pdf={tmp_path}/page.pdf", tmp_path / "page.html"],
                   capture_output=True, check=True, timeout=240)  # fmt: skip
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_runs_without_a_result_and_all_figures_are_listed(tmp_path):
    """A batch has a summary of all its runs; a run that was skipped has only its row there."""
    run = made.run("a", 100, context={"switch": "b"})
    run["stages"][0].update({"ns": {"n": 200, "planted": 1500, "ci95": [1, 2]}, "rate": {"wire": 2.5}, "of_peak": 0.25})
    batch = made.document(run) | {"order": "shuffled", "order_seed": 7, "summary": [
        {"label": "a", "end": "ok", "error": None}, {"label": "b", "id": None, "end": "skipped", "error": "there is no <GPU>"},
    ]}  # fmt: skip
    (tmp_path / "r.json").write_text(json.dumps(batch))
    frame = results.load(tmp_path / "r.json")
    page = report.render(frame)
    assert ">skipped: there is no &lt;GPU&gt;<" in page and "Order of runs: shuffled, by seed 7." in page and "Context: switch=b." in page
    cells = dict(re.findall(r'data-name="figure">(.*?)</td><td data-name="dispatch">(.*?)</td>', page))
    assert cells == {"samples": "200", "planted [us]": "1.50", "wire [GB/s]": "2.5", "limit [us]": "0.01", "of limit [%]": "25.0"}
    assert "moe.hidden: 7168" in page and ">b<" not in report.render(frame, only=("a",))
    (tmp_path / "r.json").write_text(json.dumps(batch | {"results": []}))
    assert "there is no &lt;GPU&gt;" in report.render(results.load(tmp_path / "r.json"))


def test_a_page_of_verify_has_the_checked_elements(tmp_path):
    run = made.run("a", 100, verb="verify", verify={"iterations": 3, "compared": 4096, "wrong": 17}, status="mismatch")
    run["stages"] = []
    page = page_of(tmp_path, run)
    assert re.search(r'"iterations">3</td><td data-name="elements">4096</td><td data-name="wrong">17<', page) and "<img" not in page
