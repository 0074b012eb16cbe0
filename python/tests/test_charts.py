"""epa2a.charts: each kind in each form; repetitions are pooled."""

import itertools
import re

import numpy
import pytest

import made
from epa2a import charts, results

SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.fixture
def frame(tmp_path):
    """8 runs x 5 repetitions, of two nights."""
    first, second = made.batch(), made.batch(seed=2, started="2026-11-30T23:10:00Z")
    path = made.write(tmp_path / "a.json", *first)
    return results.load(path), results.load(path, made.write(tmp_path / "b.json", *second))


@pytest.mark.parametrize("kind", charts.KINDS)
def test_each_kind_is_drawn_in_each_form(tmp_path, frame, kind):
    rows = frame[0]
    if kind == "ratio":
        rows = rows.assign(document=[
            {**run, "experiment": {**run["experiment"], "algorithm": {"name": "x" if run["label"][-1] < "3" else "y"}}}
            for run in rows["document"]
        ])  # fmt: skip
    chart = charts.draw(rows, kind)
    for suffix, signature in SIGNATURES.items():
        path = tmp_path / ("chart" + suffix)
        chart.save(path)
        assert path.read_bytes().startswith(signature)
        first = path.read_bytes()
        chart.save(path)
        assert path.read_bytes() == first, "equal data make equal files"
    for columns in (40, 80, 200):
        assert max(map(len, chart.text(columns).splitlines())) <= columns


def test_repetitions_are_pooled(frame):
    one, two = frame
    assert len(charts.distribution(one).lines) == 8
    assert "(1000 samples)" in charts.distribution(one).lines[0].name
    assert len(charts.skew(one).lines) == 8
    assert charts.stages(one).rows == [f"moe.max_tokens={2**i}" for i in range(8)]
    assert [len(line.x) for line in charts.tokens(one).lines] == [8]
    # Two files are two lines for each run; nights pool the files.
    assert len(charts.distribution(two).lines) == 16
    assert [len(line.x) for line in charts.nights(two).lines] == [2] * 8


def test_distribution_pools_samples_on_a_logarithmic_axis(frame):
    chart = charts.distribution(frame[0])
    assert chart.log_x and chart.figure().axes[0].get_xscale() == "log"
    pool = numpy.sort(numpy.concatenate(list(results.choose(frame[0], only=("moe.max_tokens=1 *",))["samples_ns"])))
    line = chart.lines[0]
    assert line.x[0] == pool[0] / 1e3 and line.x[-1] == pool[-1] / 1e3 and line.y[-1] == 100
    single = charts.distribution(frame[0], only=("moe.max_tokens=1 *",))
    assert single.style == "bins" and single.log_x and sum(single.lines[0].y) == 1000


def test_lines_are_in_the_order_of_their_sizes(frame):
    sizes = [int(line.name.split()[-2]) for line in charts.nights(frame[0]).lines]
    assert sizes == [2**i for i in range(8)]


def test_a_single_night_has_an_axis_of_days(frame):
    chart = charts.nights(frame[0])
    axes = chart.figure().axes[0]
    low, high = axes.get_xlim()
    assert high - low == 2 and [tick.get_text() for tick in axes.get_xticklabels()] == ["2026-11-29 00:00"]
    days = re.findall(r"\d\d-\d\d", chart.text().split(" Y: ")[0].split("(X)")[1].splitlines()[1])
    assert days and set(days) <= {"11-28", "11-29", "11-30"}


def test_the_axis_of_ranks_has_no_fractions(frame):
    figure = charts.skew(frame[0]).figure()
    figure.canvas.draw()
    assert all(tick == int(tick) for tick in figure.axes[0].get_xticks())


def test_the_axis_of_shares_ends_at_0_and_100(frame):
    shares = re.findall(r"^ +([-\d.]+) \|", charts.distribution(frame[0]).text(), re.M)
    assert len(shares) > 9 and all(0 <= float(share) <= 100 for share in shares)


@pytest.mark.parametrize("samples", [1, 2, 3])
def test_few_samples_have_a_distribution_in_text(tmp_path, samples):
    runs = [made.run("a", 100, samples), made.run("b", 120, samples)]
    assert "b: b" in charts.distribution(results.load(made.write(tmp_path / "r.json", *runs))).text()


def test_an_undecided_ratio_is_hollow(tmp_path):
    runs = [made.run("a", 100, 5, 0.3), made.run("b", 101, 5, 0.3, experiment__algorithm__name="b"),
            made.run("c", 200, experiment__algorithm__name="c")]  # fmt: skip
    frame = results.load(made.write(tmp_path / "r.json", *runs))
    lines = charts.ratio(frame, baseline="a").lines
    assert [line.hollow for line in lines] == [[True], [False]]
    assert "?" in charts.ratio(frame).text().split("hollow")[0] and 1.5 < lines[1].y[0] < 3
    runs = [made.run(f"{name} #{k}", us, **{"experiment__algorithm__name": name}) for name, us in (("a", 100), ("b", 150)) for k in (1, 2)]
    (line,) = charts.ratio(results.load(made.write(tmp_path / "few.json", *runs))).lines
    assert line.low[0] > 1 and line.hollow == [True], "two runs of each may lie apart by chance"
    with pytest.raises(results.ResultsError, match="--baseline z"):
        charts.ratio(frame, baseline="z")


def test_hostile_names_are_text(tmp_path):
    name = "$\\frac{1}{$ <script>alert(1)</script> %s `rm` \x1b[31m"
    runs = [made.run(name, 100), made.run("b", 100), made.run("c", 50, samples=1, experiment__moe__hidden=0)]
    frame = results.load(made.write(tmp_path / "r.json", *runs))
    for kind, suffix in itertools.product(("stages", "distribution", "skew"), (".svg", ".png")):
        charts.draw(frame, kind).save(tmp_path / f"{kind}{suffix}")
    assert "<script>" not in (tmp_path / "stages.svg").read_text()
    assert "\x1b" not in charts.stages(frame).text()


def test_an_old_matplotlib_is_named(frame, monkeypatch):
    import matplotlib

    monkeypatch.setattr(matplotlib, "__version_info__", (3, 5, 3))
    with pytest.raises(results.ResultsError, match="3.6 or later"):
        charts.draw(frame[0], "tokens").figure()
