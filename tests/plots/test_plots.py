"""The paper's figures from runs: what is drawn, and that nothing covers anything."""

import itertools
import warnings
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.transforms import Bbox
from support.report_pages import run

from rdm_solo import plots
from rdm_solo.plots import style
from rdm_solo.runs import Run, columns
from rdm_solo.runs.groups import by_setting

LONG = "a_filter_whose_name_somebody_chose_to_be_longer_than_any_panel_is_wide"
KNN = {"val__knn_acc1": [60, 70, 80]}
MEASURED = {column.name.replace("/", "__"): [1, 2, 3] for column in columns.measures()}


def ranks(target: list[float], online: list[float] | None = None) -> dict:
    low = online or [value - 1 for value in target]
    gap = [z - p for z, p in zip(target, low)]
    return {"erank__target": target, "erank__online": low, "erank__gap": gap}


def settings(count: int, seeds: int = 1) -> list[Run]:
    """Settings with that many seeds each."""
    return [
        run(round(-0.99 + i / count, 3), seed, options={"option": i}, **KNN, **MEASURED)
        for i in range(count)
        for seed in range(seeds)
    ]


def lines(axes, label: str):
    return next(line for line in axes.lines if line.get_label() == label)


def series(axes) -> list:
    """The lines of a panel that have a name."""
    return [line for line in axes.lines if not str(line.get_label()).startswith("_")]


def legends(figure: Figure) -> list[Legend]:
    beside = (axes.get_legend() for axes in figure.axes)
    return [*figure.legends, *filter(None, beside)]


def boxes(figure: Figure) -> list[tuple[str, Bbox]]:
    """Return every text that is shown, with its place in pixels."""
    texts = [*figure.texts]
    for key in legends(figure):
        texts += [key.get_title(), *key.get_texts()]
    for axes in figure.axes:
        texts += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for axis, place in ((axes.xaxis, 0), (axes.yaxis, 1)):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_majorticklabels(), *axis.get_minorticklabels()]
            texts += [t for t in ticks if low - 1e-9 <= t.get_position()[place] <= high + 1e-9]
    shown = [text for text in texts if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent()) for text in shown]


def meet(one: Bbox, other: Bbox, slack: float = 0.5) -> bool:
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return wide > slack and high > slack


@style.styled
def covered(figure: Figure) -> list[str]:
    """Return every collision: text on text, text or key on a panel."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that the font lacks, a layout without room
        # matplotlib before 3.10.7 calls today's pyparsing by old names.
        warnings.filterwarnings("ignore", ".* deprecated - use", DeprecationWarning)
        figure.draw_without_rendering()
    texts = boxes(figure)
    pairs = itertools.combinations(texts, 2)
    collisions = [f"{a!r} on {b!r}" for (a, x), (b, y) in pairs if meet(x, y)]
    panels = [axes.get_window_extent() for axes in figure.axes]
    inside = {text.get_text() for axes in figure.axes for text in axes.texts}
    for text, box in texts:
        if text not in inside and any(meet(box, panel, 2.0) for panel in panels):
            collisions.append(f"{text!r} on a panel")
    for key in legends(figure):
        if any(meet(key.get_window_extent(), panel) for panel in panels):
            collisions.append("the key on a panel")
    if any(min(panel.width, panel.height) < 90 for panel in panels):
        collisions.append("a panel has shrunk to nothing")
    return collisions


def test_collisions_are_seen():
    figure = plots.effective_rank([run()])
    assert covered(figure) == []
    figure.text(0.5, 0.5, "in the way")
    figure.text(0.51, 0.5, "of this")
    assert {"'in the way' on 'of this'", "'in the way' on a panel"} <= set(covered(figure))


@pytest.mark.parametrize("plot", plots.PLOTS, ids=lambda plot: plot.name)
def test_nothing_covers_anything(plot):
    """Of one setting, of several with long names and unequal seeds, and of many."""
    measured = {**KNN, **MEASURED}
    several = [
        run(None, method="a_method_whose_name_is_as_long_as_that_of_its_filter", filter=LONG),
        *(run(p, options={f"method.{LONG}": p}, **measured) for p in (-0.5, -0.3)),
        run(-0.5, 1, epochs=1, options={f"method.{LONG}": -0.5}),
        run(None, method="vanilla", filter="none", **measured),
    ]
    drawn = 0
    for runs in ([run(**measured)], several, settings(9, 2)):
        # A figure with a panel for each setting has the same panels again.
        many = len(runs) > 9 and plot.name not in ("sweep", "comparison")
        if plot.select(by_setting(runs)) and not many:
            assert covered(plot(runs)) == []
            drawn += 1
    assert drawn


def test_long_runs_and_large_spectra_cover_nothing():
    long = run(epochs=400, k=512, options={"max_epochs": 400})
    assert covered(plots.effective_rank([long])) == covered(plots.spectra([long])) == []
    (line,) = plots.losses([long]).axes[0].lines
    assert len(line.get_xdata()) == 400
    assert 10 < 400 / line.get_markevery() <= 20, "markers"


def test_lines_are_the_columns_and_bands_the_seeds():
    seeds = [run(seed=seed, **ranks([4 + seed, 5 + seed, 6 + seed])) for seed in (0, 1, 5)]
    figure = plots.effective_rank(seeds)
    (axes,) = figure.axes
    assert lines(axes, "target").get_xdata().tolist() == [1, 2, 3]
    assert lines(axes, "target").get_ydata() == pytest.approx([6, 7, 8])
    assert lines(axes, "online").get_ydata() == pytest.approx([5, 6, 7])
    points = axes.collections[0].get_paths()[0].vertices
    ends = points[np.isclose(points[:, 0], 1), 1]
    assert (ends.min(), ends.max()) == pytest.approx((4, 9))
    assert figure.get_label() == "Line: mean of 3 seeds. Band: minimum to maximum."


def test_a_run_behind_the_others_is_a_thin_line_and_in_no_mean():
    """Epochs without a value are left out."""
    behind = run(seed=4, epochs=1, **ranks([50]))
    figure = plots.effective_rank([run(**ranks([4, np.nan, 6])), behind])
    whole, thin = (line for line in figure.axes[0].lines if line.get_color() == style.VERMILION)
    assert whole.get_xdata().tolist() == [1, 3]
    assert whole.get_ydata() == pytest.approx([4, 6])
    assert thin.get_ydata() == pytest.approx([50])
    assert thin.get_linewidth() < whole.get_linewidth()
    assert "Not in the mean: SimSiam, target filter σ^-0.5, seed 4 (1 of 3" in figure.get_label()


EMPTY = run(None, method="dino", **ranks([np.nan] * 3))


def test_settings_without_measurements_have_no_panel():
    assert len(plots.effective_rank([run(), EMPTY]).axes) == 1
    with pytest.raises(ValueError, match="no run to draw"):
        plots.effective_rank([])


@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("effective_rank", [EMPTY]),
        ("variants", [run(None), run(None, filter="identity")]),
        ("symmetric", [run(None)]),
        ("sweep", [run(), run(None)]),
        ("sweep", [run(-0.5), run(1.0, filter="online_pow")]),  # one exponent of each filter
        ("comparison", [run()]),
        ("comparison", [run(), run(-0.3)]),
        ("spectra", [replace(run(), spectra={})]),
    ],
)
def test_each_figure_says_what_it_needs(name, members):
    plot = getattr(plots, name)
    with pytest.raises(ValueError, match=f"{name} needs"):
        plot(members)
    assert plot.select(by_setting(members)) == []


def test_spectra_are_those_of_the_last_epoch_up_to_rounding():
    one = run(k=64)
    upper, lower = plots.spectra([one]).axes
    lam_z, lam_p = one.spectra["lam_target"][-1], one.spectra["lam_online"][-1]
    m = int(np.argmax(lam_z.cumsum() >= 0.9999 * lam_z.sum())) + 1
    assert 1 < m <= 64
    assert lines(upper, "target").get_ydata() == pytest.approx(lam_z[:m])
    assert lines(upper, "online").get_ydata() == pytest.approx(lam_p[:m])
    assert lines(upper, "online").get_xdata().tolist() == list(range(1, m + 1))
    curve = lines(lower, "filter by sorted eigenvalues")
    assert curve.get_xdata() == pytest.approx(lam_z[:m])
    assert curve.get_ydata() == pytest.approx(np.sqrt(lam_p / lam_z)[:m])
    assert (upper.get_yscale(), lower.get_xscale(), lower.get_yscale()) == ("log", "log", "linear")


def test_rounding_noise_and_dead_networks_are_not_drawn():
    lam = np.array([0.6, 0.4, 1e-17, 0.0])
    figure = plots.epoch_picture({"lam_online": lam, "lam_target": np.full(4, 0.25)}, "epoch 3")
    assert lines(figure.axes[0], "online").get_ydata().tolist() == [0.6, 0.4]
    assert figure.axes[1].texts[0].get_text() == "no filter curve"
    dead = plots.epoch_picture({"lam_online": np.zeros(4), "lam_target": np.zeros(4)})
    assert "rounding noise" in dead.axes[0].texts[0].get_text()
    assert covered(figure) == covered(dead) == []


def test_variants_stand_beside_the_predictor():
    members = [
        *(run(None), run(None, filter="online_log1p"), run(-0.3), run(-0.5)),
        *(run(None, method="byol"), replace(run(None, filter="linear"), spectra={})),
    ]
    (axes,) = plots.variants(members).axes
    names = ["", ", online filter log(1 + σ)", ", target filter σ^-0.3", ", target filter σ^-0.5"]
    assert [line.get_label() for line in axes.lines] == [f"SimSiam{name}" for name in names]
    before = members[2].spectra["lam_projection"][-1]
    assert lines(axes, "SimSiam, target filter σ^-0.3").get_ydata() == pytest.approx(before)
    drawn = plots.variants.select(by_setting(members))
    assert {group.label for group in drawn} == {f"SimSiam{name}" for name in names}


def test_symmetric_methods_stand_beside_simsiam():
    symmetric = [run(None, method=name, filter="none", **KNN) for name in ("vanilla", "symsimsiam")]
    figure = plots.symmetric([run(None, **KNN), run(), run(None, method="byol"), *symmetric])
    accuracy, variance, eigenvalues, branches = figure.axes
    for axes in (accuracy, variance, eigenvalues):
        assert [line.get_label() for line in axes.lines] == ["Vanilla", "SymSimSiam", "SimSiam"]
    assert lines(accuracy, "SimSiam").get_ydata().tolist() == [60, 70, 80]
    assert lines(variance, "Vanilla").get_ydata() == pytest.approx([0.9] * 3)
    assert [line.get_label() for line in branches.lines] == ["target", "online"]


def test_losses_with_one_minimum_share_a_panel():
    names = ("simsiam", "symsimsiam", "byol", "dino")
    figure = plots.losses([run(None, method=name, filter="learnable") for name in names])
    assert [len(series(axes)) for axes in figure.axes] == [2, 1, 1]


def test_a_sweep_has_means_over_seeds_in_order_and_others_across():
    pairs = [(p, s, v) for p in (-0.3, -0.9) for s, v in enumerate((70, 71, 75))]
    members = [run(p, s, val__knn_acc1=[0, 0, v], **ranks([4, 5, 6.4])) for p, s, v in pairs]
    members += [run(None, val__knn_acc1=[0, 0, 60])]
    gone = replace(run(-0.7, val__knn_acc1=[0, 0, 9]), diverged=4)
    accuracy, rank, gap = plots.sweep([*members, gone]).axes
    line = lines(accuracy, "target filter σ^p")
    assert line.get_xdata().tolist() == [-0.9, -0.3]
    assert line.get_ydata() == pytest.approx([72, 72])
    ends = [sorted(bar[:, 1]) for bar in accuracy.collections[0].get_segments()]
    assert ends == [[70, 75], [70, 75]]
    branches = [line for line in rank.lines if line.get_label() == "target filter σ^p"]
    assert [b.get_ydata()[0] for b in branches] == pytest.approx([6.4, 5.4])
    assert branches[0].get_markerfacecolor() == "white" != branches[1].get_markerfacecolor()
    across = lines(accuracy, "learnable predictor")
    assert list(across.get_ydata()) == [60, 60]
    assert across.get_transform() == accuracy.get_yaxis_transform()
    assert lines(accuracy, "_diverged").get_xdata().tolist() == [-0.7]
    assert gap.get_ylabel() == "gap (target − online)"


def test_settings_stand_from_the_most_accurate_down():
    filters = {70: "identity", 90: "learnable", 80: "linear"}
    members = [run(None, filter=f, val__knn_acc1=[0, 0, x]) for x, f in filters.items()]
    members[2] = replace(members[2], diverged=4)
    accuracy, rank, _ = plots.comparison(members).axes
    means = [line for line in accuracy.lines if line.get_markersize() == 6]
    heights = {line.get_xdata()[0]: line.get_ydata()[0] for line in means}
    assert heights[70] < heights[80] < heights[90]
    assert {line.get_marker() for line in accuracy.lines} == {"o", "X"}
    assert rank.get_xlabel() == "effective rank around the mean"
    members[0] = replace(members[0], metrics=members[0].metrics | {"rate/slope": np.ones(3)})
    slope = plots.comparison(members).axes[3]
    assert {line.get_xdata()[0] for line in slope.lines} == {1.0}


def test_panels_have_at_most_eight_settings_each_with_one_look_in_all_figures():
    looks: dict[str, set[tuple]] = {}
    for plot in (plots.losses, plots.variants):
        figure = plot(settings(20))
        assert len(legends(figure)[0].get_texts()) == 20
        for axes in figure.axes:
            assert 0 < len(series(axes)) <= 8
            for s in series(axes):
                look = (s.get_color(), str(s.get_linestyle()), s.get_marker())
                looks.setdefault(str(s.get_label()), set()).add(look)
    assert all(len(same) == 1 for same in looks.values())
    assert len(looks) == len(set.union(*looks.values())) == 20


def test_ranks_of_one_kind_of_output_share_their_limits():
    softmax = run(None, method="swav", filter="none", **ranks([400, 500, 600]))
    low = run(None, **ranks([2, 1.8, 1.7]))
    limits = [axes.get_ylim() for axes in plots.effective_rank([run(), low, softmax]).axes]
    assert limits[0] == limits[1]
    assert limits[2][1] > 10 * limits[0][1]


def test_looks_are_apart_without_colour():
    looks = [(str(x["linestyle"]), x["marker"]) for x in style.looks(map(str, range(20))).values()]
    assert len(set(looks)) == 20
    assert all(style.TARGET[part] != style.ONLINE[part] for part in ("linestyle", "marker"))
    assert style.typeset("σ^(-0.1…-0.5) at $1") == r"σ$^{\mathrm{(-0.1…-0.5)}}$ at \$1"


def test_drawing_leaves_no_trace_and_files_are_the_same_each_time(tmp_path):
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    paths = plots.save(plots.effective_rank([run()]), tmp_path / "new", "erank")
    assert [path.name for path in paths] == ["erank.png", "erank.pdf"]
    png, pdf = (path.read_bytes() for path in paths)
    assert b"/FontFile2" in pdf, "TrueType fonts are embedded"
    figure = plots.effective_rank([run()])
    again = plots.save(figure, tmp_path / "again", "erank")
    assert [path.read_bytes() for path in again] == [png, pdf]
    inches = figure.get_tightbbox().padded(matplotlib.rcParams["savefig.pad_inches"])
    size = [int.from_bytes(png[start : start + 4], "big") for start in (16, 20)]
    assert size == pytest.approx(style.DPI * inches.size, abs=1)  # the last pixel is cut off
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []
    image = style.pixels(Figure((2, 1), dpi=50, facecolor=(1, 0, 0.2)))
    assert image.shape == (50, 100, 3)
    assert image[0, 0].tolist() == [255, 0, 51]
