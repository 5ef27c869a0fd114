"""The paper's figures from runs: what is drawn, and that nothing covers anything."""

import itertools
import warnings
from collections.abc import Sequence
from dataclasses import replace
from unittest import mock

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.text import Text
from support.report_pages import run

from rdm_solo import filters, plots
from rdm_solo.ground.errors import UserError
from rdm_solo.plots import style
from rdm_solo.plots.epochs import epoch_axes
from rdm_solo.runs import RunFolder, columns
from rdm_solo.runs.groups import by_setting
from rdm_solo.theory.filter_effect import predict_effect

LONG = "a_filter_whose_name_somebody_chose_to_be_longer_than_any_panel_is_wide"
# Besides the columns of every run here: those with the longest labels, and one for each figure.
MEASURED = {
    "val__knn_acc1": [1, 2, 3],
    "alpha_req__target": [1, 2, 3],
    "erank__held_out_centred": [1, 2, 3],
}


def draw(name: str, *runs: RunFolder) -> Figure:
    """Draw a figure without arranging its panels, which takes most of the time."""
    plot = getattr(plots, name)
    with mock.patch.object(ConstrainedLayoutEngine, "execute"):
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


def points(axes, label: str) -> list[list[float]]:
    """Return the x and the y values of the first line with a label."""
    line = next(line for line in axes.lines if line.get_label() == label)
    return line.get_xydata().T.tolist()


def assert_line(axes, label: str, y: Sequence[float]) -> None:
    """Compare the y values of the first line with a label."""
    _, actual = points(axes, label)
    assert actual == pytest.approx(y)


def labels(axes) -> list[str]:
    """Return the labels in a panel's legend."""
    return axes.get_legend_handles_labels()[1]


@style.styled
def collisions(figure: Figure) -> list[str]:
    """Return every text on another text, and every text or legend on a panel."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that the font lacks, a layout without room
        # matplotlib before 3.10.7 calls today's pyparsing by old names.
        warnings.filterwarnings("ignore", ".* deprecated - use", DeprecationWarning)
        with mock.patch.object(Text, "draw", autospec=True, side_effect=Text.draw) as draw_text:
            figure.draw_without_rendering()
    drawn = [call.args[0] for call in draw_text.call_args_list]
    texts = [text for text in drawn if text.get_visible() and text.get_text().strip()]
    panels = [axes.get_window_extent() for axes in figure.axes]
    result = []
    for panel in panels:
        if min(panel.size) < 90:
            result.append("a panel has shrunk to nothing")
    boxes = [text.get_window_extent() for text in texts]
    notes = set(itertools.chain(*(axes.texts for axes in figure.axes)))  # inside of panels
    for text, box in zip(texts, boxes):
        if box.padded(-0.5).count_overlaps(boxes) > 1:  # it overlaps itself
            result.append(f"{text.get_text()!r} on a text")
        if text not in notes and box.padded(-2).count_overlaps(panels):
            result.append(f"{text.get_text()!r} on a panel")
    for legend in figure.findobj(Legend):
        box = legend.get_window_extent()
        if box.padded(-0.5).count_overlaps(panels):
            result.append("a legend on a panel")
    return result


def test_collisions_are_seen():
    figure = plots.effective_rank(by_setting([run()]))
    assert collisions(figure) == []
    figure.text(0.5, 0.5, "in the way")
    figure.text(0.51, 0.5, "of this")
    expected = {"'in the way' on a text", "'in the way' on a panel", "'of this' on a text"}
    assert expected <= set(collisions(figure))


SEVERAL = [
    run(None, method="a_method_whose_name_is_as_long_as_that_of_its_filter", filter=LONG),
    run(-0.5, options={f"method.{LONG}": -0.5}, **MEASURED),
    run(-0.3, options={f"method.{LONG}": -0.3}, **MEASURED),
    run(-0.5, 1, epochs=1, options={f"method.{LONG}": -0.5}),
    run(None, method="vanilla", filter="none", **MEASURED),
]
OFF = {"p": {"schedule": "steps", 1: -0.5, 2: 0, 3: -0.5}}
REVERSED = {"p": {"schedule": "steps", 1: -0.5, 2: 0.5}}
SWITCHED = [
    run(-0.5, **MEASURED),
    run(options=OFF, **MEASURED),
    run(options=REVERSED, **MEASURED),
]


# Of the figures that one function draws, the one with the longest texts.
@pytest.mark.parametrize(
    ("plot", "runs"),
    [
        (plots.switch, SWITCHED),
        (plots.sweep, settings(9, seeds=2)),
        (plots.comparison, SEVERAL),
        (plots.losses, SEVERAL),
        (plots.spectra, SEVERAL[:2]),
        (plots.symmetric, SEVERAL),
        (plots.variants, SEVERAL),
        (plots.alignment, SEVERAL),
        (plots.other_charts, SEVERAL),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_nothing_covers_anything_with_panels_beside_or_below_each_other(plot, runs):
    groups = by_setting(runs)
    figure = plot(groups)
    assert collisions(figure) == []
    stacked = plot(groups, stacked=True)
    assert collisions(stacked) == []
    assert len(stacked.axes) == len(figure.axes)
    assert stacked.get_figwidth() <= 4
    for above, below in itertools.pairwise(stacked.axes):
        assert below.get_position().y1 < above.get_position().y0


def test_long_runs_and_large_spectra_cover_nothing():
    long = run(epochs=400, k=512, options={"max_epochs": 400})
    for plot in (plots.effective_rank, plots.spectra):
        assert collisions(plot(by_setting([long]))) == []
    (losses,) = draw("losses", long).axes
    (line,) = losses.lines
    markers = 400 / line.get_markevery()
    assert 10 < markers <= 20


@pytest.mark.parametrize("epochs", [1, 2, 15, 24, 100])
def test_the_last_tick_is_the_last_epoch(epochs):
    axes = Figure().subplots()
    axes.plot(range(1, epochs + 1), [1] * epochs)
    epoch_axes(axes, "loss")
    ticks = axes.get_xticks()
    assert ticks[-1] == epochs
    assert all(tick == round(tick) >= 1 for tick in ticks)
    assert len(ticks) <= 6
    assert axes.get_xlabel() == "epoch"


def test_every_column_with_a_chart_is_drawn_over_epochs_and_no_other():
    expected = {}
    for column in columns.COLUMNS.values():
        if column.chart or column.meaning:
            i = 10.0 * len(expected)
            expected[column.name] = [i + 1, i + 5, i + 3]
    measured = run(**{name.replace("/", "__"): values for name, values in expected.items()})
    drawn = []
    for plot in plots.PLOTS:
        if plot.select(by_setting([measured])):
            lines = draw(plot.name, measured).findobj(Line2D)
            drawn += [list(line.get_ydata()) for line in lines]
    for name, column in expected.items():
        assert column in drawn, name
    assert all(axes.lines for axes in draw("other_charts", run()).axes)


EMPTY = run(None, method="dino", **ranks([np.nan] * 3))


def test_a_setting_is_the_mean_and_the_range_of_its_seeds_and_a_short_run_a_thin_line():
    runs = [EMPTY, run(seed=4, epochs=1, **ranks([50]))]
    for seed, (first, last) in enumerate([(4, 6), (5, np.nan), (9, 11)]):
        measured = run(seed=seed, **ranks([first, np.nan, last]))
        runs.append(replace(measured, untrained={"erank/target": 3.0 * first}))
    figure = draw("effective_rank", *runs)
    (axes,) = figure.axes  # none for a setting without ranks
    assert points(axes, "target") == [[0, 1, 3], [18, 6, 8.5]]
    assert points(axes, "online") == [[1, 3], [5, 7.5]]
    assert axes.get_xlabel() == "epoch (0: before training)"
    (path,) = axes.collections[0].get_paths()
    epochs, heights = path.vertices.T
    first_epoch = heights[np.isclose(epochs, 1)]
    assert (first_epoch.min(), first_epoch.max()) == (4, 9)
    mean, thin, *_ = axes.lines
    assert thin.get_ydata() == [50]
    assert thin.get_linewidth() < mean.get_linewidth()
    for words in ("3 seeds", "seed 4"):
        assert words in figure.get_label()


@pytest.mark.parametrize(
    ("name", "runs"),
    [
        ("effective_rank", [EMPTY]),
        ("variants", [run(None), run(None, filter="identity")]),
        ("symmetric", [run(None)]),
        ("switch", [run(-0.3), run(options=OFF)]),
        ("switch", [run(-0.5), run(seed=1, options=OFF)]),
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
    is_leading = lam_z.cumsum() >= 0.9999 * lam_z.sum()
    m = int(is_leading.argmax()) + 1
    assert 1 < m <= 64
    assert_line(upper, "target", lam_z[:m])
    index, eigenvalues = points(upper, "online")
    assert index == list(range(1, m + 1))
    assert eigenvalues == pytest.approx(lam_p[:m])
    lam, g = points(lower, "filter by sorted eigenvalues")
    assert lam == pytest.approx(lam_z[:m])
    assert g == pytest.approx(np.sqrt(lam_p / lam_z)[:m])


def test_rounding_noise_and_dead_networks_are_not_drawn():
    lam = np.array([0.6, 0.4, 1e-17, 0.0])
    flat = np.full(4, 0.25)
    figure = plots.epoch_picture({"lam_online": lam, "lam_target": flat})
    upper, lower = figure.axes
    assert_line(upper, "online", [0.6, 0.4])
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
    byol = run(None, method="byol")
    (axes,) = draw("variants", *expected, byol).axes
    assert labels(axes) == [member.label for member in expected]
    projection = weak.spectra["lam_projection"][-1]
    assert_line(axes, weak.label, projection)


def test_symmetric_methods_stand_beside_simsiam():
    vanilla = run(None, method="vanilla", filter="none", val__knn_acc1=[60, 70, 80])
    symmetric = run(None, method="symsimsiam", filter="none")
    others = [run(), run(None, method="byol")]
    panels = draw("symmetric", vanilla, symmetric, run(None), *others).axes
    *methods, branches = panels
    for axes in methods[1:]:
        assert labels(axes) == ["Vanilla", "SymSimSiam", "SimSiam"]
    columns = [60, 70, 80], [0.9] * 3, vanilla.spectra["lam_target"][-1]
    for axes, column in zip(methods, columns, strict=True):
        assert_line(axes, "Vanilla", column)
    assert labels(branches) == ["target", "online"]


def test_losses_with_one_minimum_share_a_panel():
    runs = []
    for name in ("simsiam", "symsimsiam", "byol", "dino"):
        runs.append(run(None, method=name, filter="learnable"))
    panels = draw("losses", *runs).axes
    methods = [labels(axes) for axes in panels]
    assert methods == [["SimSiam", "SymSimSiam"], ["BYOL"], ["DINO"]]
    title = panels[0].get_title(loc="left")
    assert "minimum -1" in title.replace("\n", " ")


def test_a_sweep_has_means_over_seeds_in_order_and_others_across():
    runs = [run(None, val__knn_acc1=[0, 0, 60])]
    for p in (-0.3, -0.9):
        for seed, accuracy in enumerate((70, 71, 75)):
            columns = ranks([4, 5, 6.4])
            runs.append(run(p, seed, val__knn_acc1=[0, 0, accuracy], **columns))
    diverged = run(-0.7, val__knn_acc1=[0, 0, 9])
    runs.append(replace(diverged, diverged=4))
    accuracies, rank, gaps = draw("sweep", *runs).axes
    name = "target filter σ^p"
    assert points(accuracies, name) == [[-0.9, -0.3], [72, 72]]
    for bars in accuracies.collections:
        (bar,) = bars.get_segments()
        assert sorted(bar[:, 1]) == [70, 75]
    target, online = (line for line in rank.lines if line.get_label() == name)
    assert target.get_ydata() == pytest.approx([6.4, 6.4])
    assert online.get_ydata() == pytest.approx([5.4, 5.4])
    # A line over all exponents: x is in units of the axes.
    assert points(accuracies, "learnable predictor") == [[0, 1], [60, 60]]
    assert_line(accuracies, "_diverged", [9])
    assert_line(gaps, name, [1, 1])


def test_a_switch_is_the_mean_difference_from_the_same_seed_s_unswitched_run():
    runs = []
    for seed, (rank, accuracy) in enumerate([(8, 50), (2, 70)]):
        runs.append(run(seed=seed, erank__online=[rank] * 3, val__knn_acc1=[accuracy] * 3))
        half = [rank, rank / 2, rank / 4**seed]
        lower = [accuracy, accuracy - 10, accuracy - 10 * seed]
        off = run(seed=seed, options=OFF, erank__online=half, val__knn_acc1=lower)
        runs.append(off)
    alone = run(seed=2, options=OFF, erank__online=[9, 9, 9])
    other = run(-0.3, erank__online=[9, 9, 9])
    rank, knn = draw("switch", *runs, alone, other).axes
    assert labels(rank) == [off.label]
    assert_line(rank, off.label, [0, -np.log(2), -np.log(2)])
    assert_line(knn, off.label, [0, -10, -5])
    (path,) = rank.collections[0].get_paths()
    assert path.vertices[:, 1].min() == pytest.approx(-np.log(4))
    marks = [line.get_xdata()[0] for line in rank.lines[1:]]
    assert marks == [1.5, 2.5]


def test_settings_without_accuracies_are_compared_by_rank_and_gap():
    unmeasured = {"val__acc1": [np.nan] * 3}
    panels = draw("comparison", run(-0.5, **unmeasured), run(None, **unmeasured)).axes
    names = [axes.get_xlabel() for axes in panels]
    assert names == ["effective rank around the mean", "gap (target − online)"]


def test_settings_stand_from_the_most_accurate_down():
    runs = []
    for accuracy, name in ((70, "identity"), (90, "learnable"), (80, "linear")):
        runs.append(run(None, filter=name, val__knn_acc1=[0, 0, accuracy]))
    runs[2] = replace(runs[2], diverged=4)
    accuracies, *_ = draw("comparison", *runs).axes
    ticks = accuracies.get_yticklabels()
    names = [tick.get_text().replace("\n", " ") for tick in ticks]
    assert names == ["SimSiam, identity", "SimSiam, linear", "SimSiam"]
    means = accuracies.lines[1::2]  # behind each mean are its seeds
    assert [line.get_xdata() for line in means] == [70, 80, 90]
    assert [line.get_marker() for line in means] == ["o", "X", "o"]


@pytest.mark.parametrize(("branch", "symbol"), [("target", "h"), ("online", "g")])
def test_a_filter_is_drawn_with_its_equivalent_online_filter(branch, symbol):
    sigma = torch.tensor([8.0, 4.0, 1.0], dtype=torch.float64)
    power = filters.get("pow", p=-0.5)
    effect = predict_effect("own", branch, power, sigma)
    figure = plots.draw_filter(effect, "A note.")
    function, equivalent = figure.axes
    (line,) = function.lines
    assert line.get_ydata() == pytest.approx([8**-0.5, 0.5, 1])
    assert function.get_ylabel() == rf"${symbol}(\sigma)$"
    g = (effect.lam_p / effect.lam_z).sqrt()
    (curve,) = equivalent.lines
    assert curve.get_ydata() == pytest.approx(g.numpy())
    assert collisions(figure) == []


def test_panels_have_at_most_eight_settings_each_with_one_look_in_all_figures():
    looks: dict[str, tuple] = {}
    for name in ("losses", "variants"):
        figure = draw(name, *settings(20))
        (legend,) = figure.legends
        assert len(legend.get_texts()) == 20
        for axes in figure.axes:
            handles, names = axes.get_legend_handles_labels()
            assert 0 < len(handles) <= 8
            for handle, label in zip(handles, names):
                look = handle.get_color(), str(handle.get_linestyle()), handle.get_marker()
                assert looks.setdefault(label, look) == look
    assert len(set(looks.values())) == 20


def test_ranks_of_one_kind_of_output_share_their_limits():
    high = run()
    low = run(None, **ranks([2, 1.8, 1.7]))
    softmax = run(None, method="swav", filter="none", **ranks([400, 500, 600]))
    panels = draw("effective_rank", high, low, softmax).axes
    tops = [axes.get_ylim()[1] for axes in panels]
    assert tops[0] == tops[1] < tops[2] / 10


def test_looks_are_apart_without_colour():
    looks = style.looks(map(str, range(20)))
    assert len({(look["linestyle"], look["marker"]) for look in looks.values()}) == 20
    for part in ("linestyle", "marker"):
        assert style.TARGET[part] != style.ONLINE[part]


def test_the_rank_picture_of_a_run_draws_its_table():
    (axes,) = plots.rank_picture(run(**ranks([4, np.nan, 6])).metrics).axes
    assert points(axes, "target") == [[1, 3], [4, 6]]
    assert points(axes, "online") == [[1, 3], [3, 5]]


def test_drawing_leaves_no_trace_and_files_are_the_same_each_time(tmp_path):
    from matplotlib import pyplot

    before = dict(matplotlib.rcParams)
    versions = []
    for name in ("new", "again"):
        figure = draw("effective_rank", run())
        png, pdf = plots.save(figure, tmp_path / name, "erank")
        assert (png.name, pdf.name) == ("erank.png", "erank.pdf")
        versions.append((png.read_bytes(), pdf.read_bytes()))
    assert versions[0] == versions[1]
    assert b"/FontFile2" in pdf.read_bytes(), "TrueType fonts are embedded"
    padding = matplotlib.rcParams["savefig.pad_inches"]
    inches = figure.get_tightbbox().padded(padding)
    height, width, _ = pyplot.imread(png).shape
    # The last pixel is cut off.
    assert (width, height) == pytest.approx(style.DPI * inches.size, abs=1)
    assert dict(matplotlib.rcParams) == before
    assert pyplot.get_fignums() == []


def test_pixels_are_the_colours_of_a_figure():
    image = style.pixels(Figure((2, 1), dpi=50, facecolor=(1, 0, 0.2)))
    assert image.shape == (50, 100, 3)
    assert image[0, 0].tolist() == [255, 0, 51]
