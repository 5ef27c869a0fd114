"""The paper's figures from runs: what is drawn, and that nothing covers anything."""

import itertools
import warnings
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from support.report_pages import run

from rdm_solo import filters, plots
from rdm_solo.ground.errors import UserError
from rdm_solo.plots import style
from rdm_solo.runs import RunFolder, columns
from rdm_solo.runs.groups import by_setting
from rdm_solo.theory.filter_effect import predict_effect

LONG = "a_filter_whose_name_somebody_chose_to_be_longer_than_any_panel_is_wide"
CHARTED = [column.name for column in columns.COLUMNS.values() if column.chart or column.meaning]
MEASURED = {name.replace("/", "__"): [1, 2, 3] for name in CHARTED}


def draw(name: str, *runs: RunFolder) -> Figure:
    plot = getattr(plots, name)
    return plot(by_setting(runs))


def ranks(target: list[float]) -> dict[str, list[float]]:
    """Return the columns of a run whose online rank is the target's rank minus 1."""
    return {
        "erank__target": target,
        "erank__online": [rank - 1 for rank in target],
        "erank__gap": [1] * len(target),
    }


def settings(count: int, seeds: int = 1) -> list[RunFolder]:
    """Return the runs of some settings with that many seeds each."""
    runs = []
    for i in range(count):
        p = round(-0.99 + i / count, 3)
        for seed in range(seeds):
            runs.append(run(p, seed, options={"option": i}, **MEASURED))
    return runs


def line(axes, label: str):
    """Return the first line with a label."""
    return next(line for line in axes.lines if line.get_label() == label)


def values(axes, label: str) -> list[float]:
    """Return the y values of the first line with a label."""
    return line(axes, label).get_ydata().tolist()


def labels(axes) -> list[str]:
    """Return the labels in a panel's legend."""
    return axes.get_legend_handles_labels()[1]


def legends(figure: Figure) -> list[Legend]:
    return figure.findobj(Legend)


def visible_texts(figure: Figure) -> list[Text]:
    """Return every text that is drawn."""
    hidden = set()
    for axes in figure.axes:
        for axis, coordinate in ((axes.xaxis, 0), (axes.yaxis, 1)):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_majorticklabels(), *axis.get_minorticklabels()]:
                place = tick.get_position()[coordinate]
                if not low - 1e-9 <= place <= high + 1e-9:
                    hidden.add(tick)
    texts = []
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in hidden:
            texts.append(text)
    return texts


def overlap(one: Artist, other: Artist, slack: float) -> bool:
    box = Bbox.intersection(one.get_window_extent(), other.get_window_extent())
    return box is not None and min(box.width, box.height) > slack


@style.styled
def collisions(figure: Figure) -> list[str]:
    """Return every text on another text, and every text or legend on a panel."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that the font lacks, a layout without room
        # matplotlib before 3.10.7 calls today's pyparsing by old names.
        warnings.filterwarnings("ignore", ".* deprecated - use", DeprecationWarning)
        figure.draw_without_rendering()
    result = []
    outside = visible_texts(figure)
    for one, other in itertools.combinations(outside, 2):
        if overlap(one, other, slack=0.5):
            result.append(f"{one.get_text()!r} on {other.get_text()!r}")
    for axes in figure.axes:
        outside = [text for text in outside if text not in axes.texts]
    for axes in figure.axes:
        panel = axes.get_window_extent()
        if min(panel.width, panel.height) < 90:
            result.append("a panel has shrunk to nothing")
        for text in outside:
            if overlap(text, axes, slack=2.0):
                result.append(f"{text.get_text()!r} on a panel")
        for legend in legends(figure):
            if overlap(legend, axes, slack=0.5):
                result.append("a legend on a panel")
    return result


def test_collisions_are_seen():
    figure = draw("effective_rank", run())
    assert collisions(figure) == []
    figure.text(0.5, 0.5, "in the way")
    figure.text(0.51, 0.5, "of this")
    assert {"'in the way' on 'of this'", "'in the way' on a panel"} <= set(collisions(figure))


SEVERAL = [
    run(None, method="a_method_whose_name_is_as_long_as_that_of_its_filter", filter=LONG),
    run(-0.5, options={f"method.{LONG}": -0.5}, **MEASURED),
    run(-0.3, options={f"method.{LONG}": -0.3}, **MEASURED),
    run(-0.5, 1, epochs=1, options={f"method.{LONG}": -0.5}),
    run(None, method="vanilla", filter="none", **MEASURED),
]


@pytest.mark.parametrize("plot", plots.PLOTS, ids=lambda plot: plot.name)
def test_nothing_covers_anything(plot):
    samples = [[run(**MEASURED)], SEVERAL]
    if plot.name in ("sweep", "comparison"):  # the others repeat the panels of few settings
        samples.append(settings(9, seeds=2))
    figures = []
    for runs in samples:
        if plot.select(by_setting(runs)):
            figures.append(draw(plot.name, *runs))
    assert figures
    for figure in figures:
        assert collisions(figure) == []


def test_long_runs_and_large_spectra_cover_nothing():
    long = run(epochs=400, k=512, options={"max_epochs": 400})
    assert collisions(draw("effective_rank", long)) == []
    assert collisions(draw("spectra", long)) == []
    (losses,) = draw("losses", long).axes[0].lines
    assert 10 < 400 / losses.get_markevery() <= 20, "markers"


def test_every_column_with_a_chart_is_drawn_over_epochs():
    expected = {}
    for i, name in enumerate(MEASURED):
        expected[name] = [10.0 * i + 1, 10.0 * i + 5, 10.0 * i + 3]
    measured = run(**expected)
    drawn = []
    for plot in plots.PLOTS:
        if plot.select(by_setting([measured])):
            lines = draw(plot.name, measured).findobj(Line2D)
            drawn += [list(line.get_ydata()) for line in lines]
    for name, column in expected.items():
        assert column in drawn, name


def test_other_charts_have_a_panel_for_each_column_that_was_measured():
    figure = draw("other_charts", run(filter__monotonicity=[0.1, 0.5, 0.2]), run(-1.0))
    by_label = {axes.get_ylabel().replace("\n", " "): axes for axes in figure.axes}
    assert len(by_label) == len(figure.axes)
    monotonicity = by_label["monotonicity sorted"]
    assert values(monotonicity, "SimSiam, target filter σ^-0.5") == [0.1, 0.5, 0.2]
    assert values(monotonicity, "SimSiam, target filter σ^-1") == [1, 1, 1]


def test_alignment_has_a_line_for_each_mean():
    columns = {
        "alignment__online_target": [0.2, 0.1, 0.5],
        "alignment__online_target_weighted": [0.1, 0.4, 0.3],
    }
    (axes,) = draw("alignment", run(**columns)).axes
    assert values(axes, "plain mean (99.99 % of the eigenvalues' sum)") == [0.2, 0.1, 0.5]
    assert values(axes, "weighted by eigenvalues") == [0.1, 0.4, 0.3]


def test_bands_are_the_range_over_seeds():
    seeds = [
        run(seed=0, **ranks([4, 5, 6])),
        run(seed=1, **ranks([5, 6, 7])),
        run(seed=2, **ranks([9, 10, 11])),
    ]
    figure = draw("effective_rank", *seeds)
    (axes,) = figure.axes
    assert values(axes, "target") == pytest.approx([6, 7, 8])
    assert values(axes, "online") == pytest.approx([5, 6, 7])
    (path,) = axes.collections[0].get_paths()
    epochs, heights = path.vertices.T
    first_epoch = heights[np.isclose(epochs, 1)]
    assert first_epoch.min() == pytest.approx(4)
    assert first_epoch.max() == pytest.approx(9)
    assert "3 seeds" in figure.get_label()


def test_a_run_with_fewer_epochs_is_a_thin_line_and_in_no_mean():
    short = run(seed=4, epochs=1, **ranks([50]))
    figure = draw("effective_rank", run(**ranks([4, np.nan, 6])), short)
    (axes,) = figure.axes
    mean, thin = (line for line in axes.lines if line.get_color() == style.VERMILION)
    assert mean.get_xdata().tolist() == [1, 3], "epochs without a value are left out"
    assert mean.get_ydata().tolist() == [4, 6]
    assert thin.get_ydata().tolist() == [50]
    assert thin.get_linewidth() < mean.get_linewidth()
    assert "seed 4" in figure.get_label()


EMPTY = run(None, method="dino", **ranks([np.nan] * 3))


def test_settings_without_measurements_have_no_panel():
    assert len(draw("effective_rank", run(), EMPTY).axes) == 1


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("effective_rank", []),
        ("effective_rank", [EMPTY]),
        ("variants", [run(None), run(None, filter="identity")]),
        ("symmetric", [run(None)]),
        ("sweep", [run(-0.5), run(1.0, filter="online_pow")]),  # one exponent of each filter
        ("comparison", [run(), run(-0.3)]),
        ("spectra", [replace(run(), spectra={})]),
    ],
)
def test_a_figure_names_what_it_needs(name, runs):
    with pytest.raises(UserError, match=name):
        draw(name, *runs)


def test_spectra_are_those_of_the_last_epoch_up_to_rounding():
    one = run(k=64)
    upper, lower = draw("spectra", one).axes
    lam_z = one.spectra["lam_target"][-1]
    lam_p = one.spectra["lam_online"][-1]
    m = int(np.argmax(lam_z.cumsum() >= 0.9999 * lam_z.sum())) + 1
    assert 1 < m <= 64
    assert values(upper, "target") == pytest.approx(lam_z[:m])
    assert values(upper, "online") == pytest.approx(lam_p[:m])
    assert line(upper, "online").get_xdata().tolist() == list(range(1, m + 1))
    curve = line(lower, "filter by sorted eigenvalues")
    g = np.sqrt(lam_p / lam_z)
    assert curve.get_xdata() == pytest.approx(lam_z[:m])
    assert curve.get_ydata() == pytest.approx(g[:m])
    assert upper.get_yscale() == lower.get_xscale() == "log"


def test_rounding_noise_and_dead_networks_are_not_drawn():
    lam = np.array([0.6, 0.4, 1e-17, 0.0])
    figure = plots.epoch_picture({"lam_online": lam, "lam_target": np.full(4, 0.25)}, "epoch 3")
    upper, lower = figure.axes
    assert values(upper, "online") == [0.6, 0.4]
    assert not lower.lines
    zeros = np.zeros(4)
    dead = plots.epoch_picture({"lam_online": zeros, "lam_target": zeros})
    assert not dead.axes[0].lines
    for picture in (figure, dead):
        assert picture.axes[1].texts, "a note says why"
        assert collisions(picture) == []


def test_variants_stand_beside_the_predictor():
    weak = run(-0.3)
    expected = [run(None), run(None, filter="online_log1p"), weak, run(-0.5)]
    without_spectra = replace(run(None, filter="linear"), spectra={})
    figure = draw("variants", *expected, run(None, method="byol"), without_spectra)
    (axes,) = figure.axes
    assert labels(axes) == [member.label for member in expected]
    projection = weak.spectra["lam_projection"][-1]
    assert values(axes, weak.label) == pytest.approx(projection)


def test_symmetric_methods_stand_beside_simsiam():
    knn = {"val__knn_acc1": [60, 70, 80]}
    vanilla = run(None, method="vanilla", filter="none", **knn)
    symsimsiam = run(None, method="symsimsiam", filter="none", **knn)
    simsiam = run(None, **knn)
    others = [run(), run(None, method="byol")]
    figure = draw("symmetric", simsiam, vanilla, symsimsiam, *others)
    accuracy, variance, eigenvalues, branches = figure.axes
    for axes in (accuracy, variance, eigenvalues):
        assert labels(axes) == ["Vanilla", "SymSimSiam", "SimSiam"]
    assert values(accuracy, "SimSiam") == [60, 70, 80]
    assert values(variance, "Vanilla") == pytest.approx([0.9] * 3)
    last = vanilla.spectra["lam_target"][-1]
    assert values(eigenvalues, "Vanilla") == pytest.approx(last)
    assert labels(branches) == ["target", "online"]


def test_losses_with_one_minimum_share_a_panel():
    names = ("simsiam", "symsimsiam", "byol", "dino")
    runs = [run(None, method=name, filter="learnable") for name in names]
    figure = draw("losses", *runs)
    methods = [labels(axes) for axes in figure.axes]
    assert methods == [["SimSiam", "SymSimSiam"], ["BYOL"], ["DINO"]]
    assert "minimum -1" in figure.axes[0].get_title(loc="left").replace("\n", " ")


def test_a_sweep_has_means_over_seeds_in_order_and_others_across():
    runs = [run(None, val__knn_acc1=[0, 0, 60])]
    for p in (-0.3, -0.9):
        for seed, accuracy in enumerate((70, 71, 75)):
            runs.append(run(p, seed, val__knn_acc1=[0, 0, accuracy], **ranks([4, 5, 6.4])))
    diverged = replace(run(-0.7, val__knn_acc1=[0, 0, 9]), diverged=4)
    accuracies, rank, gaps = draw("sweep", *runs, diverged).axes
    means = line(accuracies, "target filter σ^p")
    assert means.get_xdata().tolist() == [-0.9, -0.3]
    assert means.get_ydata() == pytest.approx([72, 72])
    for bars in accuracies.collections:
        (bar,) = bars.get_segments()
        assert sorted(bar[:, 1]) == [70, 75]
    target, online = (curve for curve in rank.lines if curve.get_label() == "target filter σ^p")
    assert target.get_ydata() == pytest.approx([6.4, 6.4])
    assert online.get_ydata() == pytest.approx([5.4, 5.4])
    assert target.get_markerfacecolor() == "white" != online.get_markerfacecolor()
    across = line(accuracies, "learnable predictor")
    assert list(across.get_ydata()) == [60, 60]
    assert across.get_transform() == accuracies.get_yaxis_transform(), "over all exponents"
    assert values(accuracies, "_diverged") == [9]
    assert values(gaps, "target filter σ^p") == pytest.approx([1, 1])


def test_settings_stand_from_the_most_accurate_down():
    middle = run(None, filter="linear", val__knn_acc1=[0, 0, 80])
    runs = [
        run(None, filter="identity", val__knn_acc1=[0, 0, 70]),
        run(None, val__knn_acc1=[0, 0, 90]),
        replace(middle, diverged=4),
    ]
    accuracies, *_ = draw("comparison", *runs).axes
    heights = {}
    for marker in accuracies.lines:
        if marker.get_markersize() == 6:  # a mean
            (accuracy,) = marker.get_xdata()
            (heights[accuracy],) = marker.get_ydata()
    assert heights[70] < heights[80] < heights[90]
    names = [tick.get_text().replace("\n", " ") for tick in accuracies.get_yticklabels()]
    assert names == ["SimSiam, identity", "SimSiam, linear", "SimSiam"]
    assert {marker.get_marker() for marker in accuracies.lines} == {"o", "X"}


@pytest.mark.parametrize(("branch", "symbol"), [("target", "h"), ("online", "g")])
def test_a_filter_is_drawn_with_its_equivalent_online_filter(branch, symbol):
    sigma = torch.tensor([8.0, 4.0, 1.0], dtype=torch.float64)
    effect = predict_effect("own", branch, filters.get("pow", p=-0.5), sigma)
    figure = plots.draw_filter(effect, "A note.")
    function, equivalent = figure.axes
    (line,) = function.lines
    assert line.get_xdata() == pytest.approx([8, 4, 1])
    assert line.get_ydata() == pytest.approx(sigma.numpy() ** -0.5)
    assert function.get_ylabel() == rf"${symbol}(\sigma)$"
    g = (effect.lam_p / effect.lam_z).sqrt().numpy()
    scale = equivalent.lines[0].get_ydata() / g
    assert scale == pytest.approx([scale[0]] * 3), "equal up to the scale of the curve"
    assert collisions(figure) == []


def test_panels_have_at_most_eight_settings_each_with_one_look_in_all_figures():
    looks: dict[str, tuple] = {}
    for name in ("losses", "variants"):
        figure = draw(name, *settings(20))
        assert len(legends(figure)[0].get_texts()) == 20
        for axes in figure.axes:
            handles, names = axes.get_legend_handles_labels()
            assert 0 < len(handles) <= 8
            for handle, label in zip(handles, names):
                look = (handle.get_color(), str(handle.get_linestyle()), handle.get_marker())
                assert looks.setdefault(label, look) == look
    assert len(looks) == len(set(looks.values())) == 20


def test_ranks_of_one_kind_of_output_share_their_limits():
    softmax = run(None, method="swav", filter="none", **ranks([400, 500, 600]))
    low = run(None, **ranks([2, 1.8, 1.7]))
    first, second, third = draw("effective_rank", run(), low, softmax).axes
    assert first.get_ylim() == second.get_ylim()
    _, highest = third.get_ylim()
    assert highest > 10 * first.get_ylim()[1]


def test_looks_are_apart_without_colour():
    looks = style.looks(map(str, range(20))).values()
    assert len({(str(look["linestyle"]), look["marker"]) for look in looks}) == 20
    for part in ("linestyle", "marker"):
        assert style.TARGET[part] != style.ONLINE[part]


def test_the_rank_picture_of_a_run_draws_its_table():
    metrics = run(**ranks([4, np.nan, 6])).metrics
    (axes,) = plots.rank_picture(metrics, "a run").axes
    target = line(axes, "target")
    assert target.get_xdata().tolist() == [1, 3]
    assert target.get_ydata().tolist() == [4, 6]
    assert values(axes, "online") == [3, 5]


def test_drawing_leaves_no_trace_and_files_are_the_same_each_time(tmp_path):
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    png, pdf = plots.save(draw("effective_rank", run()), tmp_path / "new", "erank")
    assert (png.name, pdf.name) == ("erank.png", "erank.pdf")
    assert b"/FontFile2" in pdf.read_bytes(), "TrueType fonts are embedded"
    figure = draw("effective_rank", run())
    again = plots.save(figure, tmp_path / "again", "erank")
    for path, other in zip((png, pdf), again):
        assert path.read_bytes() == other.read_bytes()
    inches = figure.get_tightbbox().padded(matplotlib.rcParams["savefig.pad_inches"])
    height, width, _ = pyplot.imread(png).shape
    # The last pixel is cut off.
    assert (width, height) == pytest.approx(style.DPI * inches.size, abs=1)
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def test_pixels_are_the_colours_of_a_figure():
    image = style.pixels(Figure((2, 1), dpi=50, facecolor=(1, 0, 0.2)))
    assert image.shape == (50, 100, 3)
    assert image[0, 0].tolist() == [255, 0, 51]
