"""The paper's figures from runs: what is drawn, what is said, and that nothing covers anything."""

from __future__ import annotations

import io
import itertools
import warnings
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.transforms import Bbox
from omegaconf import OmegaConf

from rdm_solo import plots
from rdm_solo.plots import roles, style
from rdm_solo.plots.curves import blocks, looks
from rdm_solo.plots.eigenvalues import drawn_in_symmetric, drawn_in_variants
from rdm_solo.plots.exponents import drawn_in_sweep
from rdm_solo.plots.measures import MEASURES
from rdm_solo.plots.style import BLUE, VERMILION, styled, typeset
from rdm_solo.runs import Run
from rdm_solo.runs.groups import groups
from rdm_solo.runs.roles_file import Roles, Series

LONG = "a_filter_whose_name_somebody_chose_to_be_longer_than_any_panel_is_wide"


def run(
    method: str = "simsiam",
    name: str = "learnable",
    p: object = None,
    seed: int = 0,
    epochs: int = 3,
    k: int = 32,
    decay: float = 1.5,
    measured: int | None = None,
    dataset: str = "digits",
    **changed: object,
) -> Run:
    """A run of power-law spectra: lam_z ~ i^-decay, lam_p = lam_z^1.4, both with sum 1."""
    config = OmegaConf.create(
        {
            **{"method": {"name": method}, "filter": {"name": name}, "dataset": {"name": dataset}},
            **{"p": p, "seed": seed, "max_epochs": epochs, "trainer": {"devices": 1}},
        }
    )
    for key, value in changed.items():
        OmegaConf.update(config, key.replace("__", "."), value)
    done = epochs if measured is None else measured
    epoch = np.arange(done)
    metrics = {
        "epoch": epoch + 1.0,
        "erank/online": 2 + 0.1 * epoch + seed,
        "erank/target": 4 + 0.2 * epoch + seed,
        "erank/gap": 2 + 0.1 * epoch,
        "alignment/online_target": 0.3 + 0 * epoch,
        "alignment/online_target_paper_m": 0.4 + 0 * epoch,
        "alignment/online_target_weighted": 0.9 + 0 * epoch,
        "alignment/target_positive": 0.8 + 0.01 * seed + 0 * epoch,
        "feature/variance": 0.9 - 0.01 * epoch,
        "train/loss": -0.5 - 0.01 * epoch,
        "val/acc1": np.full(done, np.nan),
        "val/knn_acc1": np.where(epoch == done - 1, 70.0 + seed, np.nan),
        "erank/centred": 3 + 0.1 * epoch,
        **{name: 1 + i + 0.1 * epoch for i, name in enumerate(MEASURES)},
    }
    lam = np.arange(1, k + 1, dtype=float) ** -decay
    lam_z, lam_p = lam / lam.sum(), lam**1.4 / (lam**1.4).sum()
    one = {
        **{"lam_online": lam_p, "lam_target": lam_z, "lam_positive": 0.5 * lam_z},
        **{"lam_projection": lam_z * (1 + seed), "filter_curve": np.sqrt(lam_p / lam_z)},
        "filter_curve_directional": np.sqrt(lam_p / lam_z) * (1 + 0.2 * np.cos(np.arange(k))),
    }
    spectra = {key: np.tile(value, (done, 1)) for key, value in one.items()}
    return Run(
        Path("runs") / f"{method}_{name}_{seed}", config, metrics, spectra | {"epoch": epoch + 1}
    )


def lacking(broken: Run, *names: str) -> Run:
    """The run without those columns, and without spectra if "spectra" is among them."""
    metrics = {key: value for key, value in broken.metrics.items() if key not in names}
    spectra = {} if "spectra" in names else broken.spectra
    return Run(broken.folder, broken.config, metrics, spectra)


def lines(axes, label: str):
    return next(line for line in axes.lines if line.get_label() == label)


def words(figure: Figure) -> str:
    """Everything that stands on the figure outside the panels."""
    return " ".join(text.get_text() for text in figure.texts).replace("\n", " ")


def legends(figure: Figure) -> list[Legend]:
    beside = (axes.get_legend() for axes in figure.axes)
    return [*(key for inner in figure.subfigs for key in inner.legends), *filter(None, beside)]


# What covers what: boxes of text, key and panels, in pixels.


def _ticks(axis, index: int):
    low, high = sorted(axis.get_view_interval())
    slack = 1e-9 * (high - low)
    for label in [*axis.get_majorticklabels(), *axis.get_minorticklabels()]:
        if low - slack <= label.get_position()[index] <= high + slack:
            yield label


def texts(figure: Figure) -> list[tuple[str, Bbox]]:
    found = list(figure.texts)
    for legend in legends(figure):
        found += legend.get_texts()
    for axes in figure.axes:
        found += [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        found += [*_ticks(axes.xaxis, 0), *_ticks(axes.yaxis, 1)]
        found += [axes.xaxis.get_offset_text(), axes.yaxis.get_offset_text()]
    shown = [text for text in found if text.get_visible() and text.get_text().strip()]
    return [(text.get_text(), text.get_window_extent()) for text in shown]


def meet(one: Bbox, other: Bbox, slack: float = 0.5) -> bool:
    """They share more than half a pixel in both directions."""
    wide = min(one.x1, other.x1) - max(one.x0, other.x0)
    high = min(one.y1, other.y1) - max(one.y0, other.y0)
    return wide > slack and high > slack


@styled
def covered(figure: Figure) -> list[str]:
    """Every collision: text on text, text or key on a panel that is not its own, text outside."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a glyph that the font lacks, a layout that has no room
        # matplotlib before 3.10.7 calls today's pyparsing by old names.
        warnings.filterwarnings("ignore", ".* deprecated - use", DeprecationWarning)
        figure.draw_without_rendering()
    boxes = texts(figure)
    found = [f"{a!r} on {b!r}" for (a, x), (b, y) in itertools.combinations(boxes, 2) if meet(x, y)]
    whole = figure.bbox
    for text, box in boxes:
        if box.x0 < -1 or box.y0 < -1 or box.x1 > whole.x1 + 1 or box.y1 > whole.y1 + 1:
            found.append(f"{text!r} leaves the figure")
    panels = [axes.get_window_extent() for axes in figure.axes if axes.axison]  # else but a key
    inside = {text.get_text() for axes in figure.axes for text in axes.texts}
    for text, box in boxes:
        if text not in inside and any(meet(box, panel, 2.0) for panel in panels):
            found.append(f"{text!r} on a panel")
    for legend in legends(figure):
        if any(meet(legend.get_window_extent(), panel) for panel in panels):
            found.append("the key on a panel")
    if any(min(panel.width, panel.height) < 90 for panel in panels):
        found.append("a panel has shrunk to nothing")
    return found


class TestNothingCoversAnything:
    def test_collisions_are_seen(self):
        figure = plots.effective_rank([run()])
        assert covered(figure) == []
        figure.text(0.5, 0.5, "in the way")
        figure.text(0.51, 0.5, "of this")
        figure.text(0.99, 0.01, "out of the picture")
        found = covered(figure)
        assert "'in the way' on 'of this'" in found
        assert "'in the way' on a panel" in found
        assert "'out of the picture' leaves the figure" in found

    @pytest.mark.parametrize(
        ("count", "epochs", "k", "names"),
        [
            (1, 400, 2048, "spectra sweep"),
            (2, 1, 4, "effective_rank spectra"),
            (5, 3, 32, "variants sweep"),
            (13, 400, 32, "effective_rank losses"),
        ],
    )
    def test_in_any_number_of_runs_epochs_and_dimensions(self, count, epochs, k, names):
        p = np.linspace(-1, 1, count).round(2).tolist()
        many = [run("simsiam", "target_pow", x, epochs=epochs, k=k) for x in p]
        if count < 13:
            many.append(run("byol", "online_pow", 1.0, epochs=epochs, k=k, seed=3))
        for name in names.split():
            assert covered(getattr(plots, name)(many)) == [], name

    def test_with_long_names(self):
        schedule = {"schedule": "linear", "start": -0.1, "end": -0.5}
        long = [
            run("a_method_with_a_name_as_long_as_a_filters", LONG),
            run("simsiam", "target_pow", schedule, measured=2),
            run("simsiam", "target_pow", -0.5, method__the_only_option_that_differs=LONG),
            run("simsiam", "target_pow", -0.5, method__the_only_option_that_differs=1),
        ]
        named = [*long, lacking(run("dino", LONG), "erank/online", "erank/target", "spectra")]
        drawn = [plots.alignment(named), plots.variants(long)]
        drawn += [plots.sweep(long)]
        assert [covered(figure) for figure in drawn] == [[]] * len(drawn)

    @styled
    def test_a_line_that_fits_fits_at_every_resolution(self):
        figure, _ = style.figure(2)
        style.finish(figure, note="Mean of n = 1 to 2 seeds; band: smallest to largest. " * 4)
        for dpi in (72, 100, 150):
            figure.set_dpi(dpi)
            figure.draw_without_rendering()
            (text,) = figure.texts
            box = text.get_window_extent(figure.canvas.get_renderer())
            assert box.x1 <= figure.bbox.x1, dpi

    def test_of_collapsed_and_empty_spectra(self):
        nothing = {name: np.zeros(4) for name in ("lam_online", "lam_target")}
        nothing["filter_curve"] = np.full(4, np.nan)
        one = {**nothing, "lam_online": np.eye(4)[0], "lam_target": np.eye(4)[0]}
        narrow = {name: np.array([0.3, 0.29, 0.28]) for name in ("lam_online", "lam_target")}
        narrow["filter_curve"] = np.ones(3)
        for arrays in (nothing, one, narrow):
            assert covered(plots.epoch_picture(arrays, "epoch 3")) == []
        assert covered(plots.symmetric([run("vanilla", "none", epochs=1)])) == []

    def test_of_roles(self):
        lam = np.geomspace(0.2, 1e-5, 32)
        found = []
        for branch, names in (
            ("online", ["g", "omega", "omega, directional"]),
            ("target", [f"{i} iterations, ε = {e}" for e in (0.05, 0.1) for i in range(4)]),
        ):
            curves = tuple(
                Series(name, name[-4:], lam, lam ** (0.1 * i) - 0.3 * (name == "omega"), 1, 0.3, 4)
                for i, name in enumerate(names)
            )
            about = (Path(branch), branch, branch, 0, branch, curves, names[0], 4.0, 64, 32, 14)
            found.append(Roles(*about, note="online temperature 0.1"))
        figure = roles.draw([*found, replace(found[0], seed=1)])
        assert [len(legend.get_texts()) for legend in legends(figure)] == [3, 8]
        assert covered(figure) == []


class TestEffectiveRank:
    def test_the_lines_are_the_columns_and_the_band_the_seeds(self):
        seeds = [run(seed=seed, epochs=4) for seed in (0, 1, 5)]
        (axes,) = plots.effective_rank(seeds).axes
        target = lines(axes, "target")
        assert target.get_xdata().tolist() == [1, 2, 3, 4]
        assert target.get_ydata() == pytest.approx(4 + 0.2 * np.arange(4) + 2)
        assert lines(axes, "online").get_ydata() == pytest.approx(2 + 0.1 * np.arange(4) + 2)
        low, high = _ends(axes.collections[0], at=1)
        assert (low, high) == pytest.approx((4, 9))
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("epoch", "effective rank")
        assert axes.get_ylim()[0] == 0

    def test_gaps_are_left_out(self):
        gaps = run(epochs=4)
        gaps.metrics["erank/target"][1] = np.nan
        (axes,) = plots.effective_rank([gaps]).axes
        assert lines(axes, "target").get_xdata().tolist() == [1, 3, 4]
        assert lines(axes, "online").get_xdata().tolist() == [1, 2, 3, 4]

    def test_a_seed_that_stopped_is_drawn_as_far_as_it_went_and_named(self):
        figure = plots.effective_rank([run(seed=0), run(seed=4, measured=1)])
        drawn = [line for line in figure.axes[0].lines if line.get_color() == VERMILION]
        assert drawn[0].get_ydata() == pytest.approx([4, 4.2, 4.4])
        assert drawn[1].get_xdata().tolist() == [1]
        assert drawn[1].get_ydata() == pytest.approx([8])
        assert drawn[1].get_linewidth() < drawn[0].get_linewidth()
        assert words(figure) == ("Not in the mean: SimSiam, seed 4 (1 of 3 epochs).")
        keyed = [text.get_text() for legend in legends(figure) for text in legend.get_texts()]
        assert keyed == ["target", "online"]

    def test_seeds_that_ended_alike_are_whole_however_short(self):
        figure = plots.effective_rank([run(seed=0, measured=2), run(seed=4, measured=2)])
        assert lines(figure.axes[0], "target").get_ydata() == pytest.approx([6, 6.2])
        assert "n = 2 seeds" in words(figure)
        assert "Unfinished: SimSiam, seed 0 (2 of 3 epochs)" in words(figure)
        assert "fewer" not in words(figure)

    def test_a_run_without_the_columns_is_named(self):
        figure = plots.effective_rank([run(), lacking(run("dino", "none"), *COLUMNS)])
        assert len(figure.axes) == 1
        assert "Without effective rank: DINO, seed 0." in words(figure)

    def test_without_any_it_says_what_is_missing(self):
        with pytest.raises(ValueError, match="No run has a column of erank/target"):
            plots.effective_rank([lacking(run(), *COLUMNS)])
        with pytest.raises(ValueError, match="no run to draw"):
            plots.effective_rank([])


COLUMNS = ("erank/online", "erank/target")


def _ends(band, at: float) -> tuple[float, float]:
    """A band's lower and upper end at an x."""
    points = band.get_paths()[0].vertices
    y = points[np.isclose(points[:, 0], at), 1]
    return float(y.min()), float(y.max())


class TestAlignment:
    def test_each_measure_has_its_line(self):
        (axes,) = plots.alignment([run()]).axes
        heights = {line.get_label(): line.get_ydata()[0] for line in axes.lines}
        assert heights == {
            "plain mean (99.99 % of the eigenvalues' sum)": 0.3,
            "plain mean (512 eigenvectors; BYOL: 128)": 0.4,
            "weighted by eigenvalues": 0.9,
        }

    def test_an_older_run_has_fewer(self):
        old = lacking(run(), "alignment/online_target_paper_m")
        assert len(plots.alignment([old]).axes[0].lines) == 2


class TestSpectra:
    def test_eigenvalues_and_curve_are_those_of_the_run(self):
        one = run(k=100, decay=3)
        upper, lower = plots.spectra([one]).axes
        lam_z, lam_p = one.spectra["lam_target"][0], one.spectra["lam_online"][0]
        m = int(np.argmax(lam_z.cumsum() >= 0.9999 * lam_z.sum())) + 1
        assert 1 < m < 100
        assert lines(upper, "target").get_ydata() == pytest.approx(lam_z[:m])
        assert lines(upper, "online").get_ydata() == pytest.approx(lam_p[:m])
        assert lines(upper, "online").get_xdata().tolist() == list(range(1, m + 1))
        curve = lines(lower, "filter by sorted eigenvalues")
        assert curve.get_xdata() == pytest.approx(lam_z[:m])
        assert curve.get_ydata() == pytest.approx(np.sqrt(lam_p / lam_z)[:m])
        strict = lines(lower, "filter along the target's eigenvectors")
        assert strict.get_ydata() == pytest.approx(one.spectra["filter_curve_directional"][0][:m])
        assert (upper.get_yscale(), upper.get_xscale()) == ("log", "linear")
        assert (lower.get_xscale(), lower.get_yscale()) == ("log", "linear")

    def test_every_method_has_a_column(self):
        figure = plots.spectra([run(seed=0), run(seed=1), run("byol"), run("swav", "none", k=8)])
        titles = [axes.get_title(loc="left") for axes in figure.axes]
        assert titles == ["SimSiam, epoch 3", "", "BYOL, epoch 3", "", "SwAV, epoch 3", ""]
        across = [axes.get_position().x0 for axes in figure.axes]
        assert across[0] == pytest.approx(across[1], abs=0.02)
        assert across[2] > across[1] + 0.2

    def test_a_seed_behind_the_others_is_not_averaged_with_them_and_named(self):
        behind = run(seed=1, measured=1)
        behind.spectra["lam_target"] *= 100
        figure = plots.spectra([run(), behind])
        assert lines(figure.axes[0], "target").get_ydata()[0] < 1
        assert words(figure) == ("Not in the mean: SimSiam, seed 1 (1 of 3 epochs).")

    def test_a_seed_whose_last_spectrum_is_missing_is_named(self):
        unlike = run(seed=1)
        unlike.spectra["epoch"] = unlike.spectra["epoch"] - 1
        figure = plots.spectra([run(), unlike])
        assert "Without a spectrum of that epoch: SimSiam, seed 1." in words(figure)

    @pytest.mark.parametrize("k", [1, 2, 4, 32, 2048])
    def test_no_eigenvalue_has_the_index_0(self, k):
        axes = plots.spectra([run(k=k, decay=0.1)]).axes[0]
        low, high = axes.get_xlim()
        shown = [x for x in axes.get_xticks() if low <= x <= high]
        assert shown[0] == 1
        assert all(x == round(x) for x in shown)

    def test_rounding_noise_is_not_drawn(self):
        lam = np.array([0.6, 0.4, 1e-17, 0.0])
        arrays = {"lam_online": lam, "lam_target": np.full(4, 0.25)}
        figure = plots.epoch_picture(arrays)
        assert lines(figure.axes[0], "online").get_ydata().tolist() == [0.6, 0.4]
        assert figure.axes[1].texts[0].get_text() == "no filter curve"

    def test_a_dead_network_is_said_to_be(self):
        zeros = {"lam_online": np.zeros(4), "lam_target": np.zeros(4)}
        said = [axes.texts[0].get_text() for axes in plots.epoch_picture(zeros).axes]
        assert said == ["all eigenvalues are\nrounding noise", "no filter curve"]

    def test_without_any_it_says_what_is_missing(self):
        with pytest.raises(ValueError, match="No run has a spectrum"):
            plots.spectra([lacking(run(), "spectra")])


class TestVariants:
    def test_filters_of_either_branch_stand_beside_the_predictor(self):
        runs = [
            *(run(), run("simsiam", "linear")),
            *(run("simsiam", "online_log1p"), run("simsiam", "target_pow", -0.3, seed=1)),
            *(run("simsiam", "target_pow", -1.0), run("dino", "none")),
        ]
        figure = plots.variants(runs)
        online, target = figure.axes
        assert [line.get_label() for line in online.lines] == [
            *("learnable predictor", "linear", "g(σ) = log(1 + σ)"),
        ]
        assert [line.get_label() for line in target.lines] == [
            *("learnable predictor", "linear", "h(σ) = σ^-0.3", "h(σ) = σ^-1"),
        ]
        before = runs[3].spectra["lam_projection"][-1]
        assert lines(target, "h(σ) = σ^-0.3").get_ydata() == pytest.approx(before)
        shared = [lines(axes, "linear") for axes in figure.axes]
        assert shared[0].get_color() == shared[1].get_color()
        assert online.get_title(loc="left") == "SimSiam, online filters"

    def test_without_a_filter_it_says_what_is_missing(self):
        with pytest.raises(ValueError, match="filter=online_"):
            plots.variants([run(), run("simsiam", "identity")])


class TestSymmetric:
    def test_simsiam_stands_beside_the_symmetric_methods(self):
        runs = [
            *(run(), run("simsiam", "target_pow", -0.5), run("byol")),
            *(run("vanilla", "none"), run("symsimsiam", "none")),
        ]
        accuracy, variance, eigenvalues, branches = plots.symmetric(runs).axes
        names = ["SimSiam", "Vanilla", "SymSimSiam"]
        for axes in (accuracy, variance, eigenvalues):
            assert [line.get_label() for line in axes.lines] == names
        assert lines(variance, "Vanilla").get_ydata() == pytest.approx([0.9, 0.89, 0.88])
        assert accuracy.get_ylabel() == "kNN (%)"
        assert lines(accuracy, "SimSiam").get_ydata().tolist() == [70]
        assert eigenvalues.get_yscale() == "log"
        assert [line.get_label() for line in branches.lines] == ["target", "online"]
        assert branches.get_title(loc="left").replace("\n", " ") == "two branches: SymSimSiam"

    def test_it_draws_as_far_as_the_runs_go(self):
        figure = plots.symmetric([lacking(run("vanilla", "none"), "val/knn_acc1", "spectra")])
        said = [[text.get_text() for text in axes.texts] for axes in figure.axes]
        assert [bool(text) for text in said] == [True, False, True, True]
        assert "Without a spectrum: Vanilla, seed 0." in words(figure)

    def test_without_a_symmetric_run_it_says_what_is_missing(self):
        with pytest.raises(ValueError, match="symsimsiam or vanilla"):
            plots.symmetric([run()])


class TestLosses:
    def test_losses_of_one_scale_share_a_panel(self):
        figure = plots.losses([run(), run("symsimsiam", "none"), run("byol"), run("dino", "none")])
        assert [axes.get_title(loc="left").replace("\n", " ") for axes in figure.axes] == [
            *("SimSiam, SymSimSiam", "BYOL", "DINO"),
        ]
        assert lines(figure.axes[0], "SimSiam").get_ydata() == pytest.approx([-0.5, -0.51, -0.52])

    def test_without_any_it_says_what_is_missing(self):
        with pytest.raises(ValueError, match=r"train/loss; has an epoch ended[?]$"):
            plots.losses([lacking(run(), "train/loss")])


def test_without_accuracies_no_diagnostics_are_asked_for():
    with pytest.raises(ValueError, match="labels and validation images") as said:
        plots.accuracies([lacking(run(), "val/acc1", "val/knn_acc1")])
    assert "diagnostics" not in str(said.value)


def test_runs_with_a_filter_but_without_spectra_are_not_called_unfiltered():
    with pytest.raises(ValueError, match="No run with a filter has a spectrum; was diagnostics"):
        plots.variants([lacking(run(name="online_log"), "spectra"), run()])
    with pytest.raises(ValueError, match="No run has a filter"):
        plots.variants([run(), lacking(run(name="identity"), "spectra")])


class TestSweep:
    def sweep(self):
        return [
            *(run("simsiam", "target_pow", p, seed=s) for p in (-0.3, -1.0) for s in (0, 1, 5)),
            *(run("simsiam", "learnable", seed=s) for s in (0, 1)),
            run("simsiam", "identity"),
        ]

    def test_points_are_means_in_order_and_bars_the_seeds(self):
        accuracy, rank, gap = plots.sweep(self.sweep()).axes
        drawn = lines(accuracy, "target filter h(σ) = σ^p")
        assert drawn.get_xdata().tolist() == [-1.0, -0.3]
        assert drawn.get_ydata() == pytest.approx([72, 72])
        ends = [sorted(bar[:, 1]) for bar in accuracy.collections[0].get_segments()]
        assert np.array(ends) == pytest.approx(np.array([[70, 75], [70, 75]]))
        branches = [line for line in rank.lines if line.get_label() == drawn.get_label()]
        assert branches[0].get_ydata() == pytest.approx([6.4, 6.4])
        assert branches[1].get_ydata() == pytest.approx([4.2, 4.2])
        assert branches[0].get_linestyle() != branches[1].get_linestyle()
        assert lines(gap, drawn.get_label()).get_ydata() == pytest.approx([2.2, 2.2])
        assert accuracy.get_xlabel() == "exponent $p$"

    def test_runs_without_an_exponent_are_horizontal(self):
        accuracy, _, gap = plots.sweep(self.sweep()).axes
        across = lines(accuracy, "learnable predictor")
        assert across.get_ydata().tolist() == [70.5, 70.5]
        assert across.get_transform() == accuracy.get_yaxis_transform()
        assert lines(gap, "identity").get_ydata() == pytest.approx([2.2, 2.2])
        assert accuracy.get_xlim()[1] < 0, "no exponent is made up for them"

    def test_methods_have_rows_and_the_count_of_seeds_is_said(self):
        runs = [*self.sweep(), run("byol", "online_pow", 1.0)]
        figure = plots.sweep(runs)
        assert [axes.get_title(loc="left") for axes in figure.axes[::3]] == ["SimSiam", "BYOL"]
        assert "n = 1 to 3 seeds, from the smallest to the largest" in words(figure)

    def test_settings_of_one_exponent_are_series_of_their_own(self):
        runs = [run("simsiam", "target_pow", -0.5, batch_size=size) for size in (64, 128)]
        left = plots.sweep(runs).axes[0]
        names = [line.get_label() for line in left.lines]
        assert names == [f"target filter h(σ) = σ^p (batch_size={size})" for size in (64, 128)]

    def test_another_accuracy_takes_the_place_of_one_not_measured(self):
        only = lacking(run("simsiam", "target_pow", -0.5), "val/knn_acc1")
        only.metrics["val/acc1"][-1] = 81.0
        figure = plots.sweep([only])
        assert figure.axes[0].lines[0].get_ydata().tolist() == [81]
        only.metrics["val/acc1"][-1] = np.nan
        assert "not measured" in plots.sweep([only]).axes[0].texts[0].get_text()

    def test_a_seed_behind_the_others_is_in_no_point(self):
        behind = run("simsiam", "target_pow", -0.3, seed=50, measured=1)
        figure = plots.sweep([*self.sweep(), behind])
        assert figure.axes[1].lines[0].get_ydata() == pytest.approx([6.4, 6.4])
        assert "Not in the mean: SimSiam, h(σ)" in words(figure)
        assert "seed 50 (1 of 3 epochs)" in words(figure)
        assert "n = 1 to 3 seeds" in words(figure)

    def test_the_branches_of_a_single_exponent_are_apart(self):
        figure = plots.sweep([run("simsiam", "target_pow", -0.3)])
        rank = figure.axes[1]
        target, online = (line.get_markerfacecolor() for line in rank.lines)
        assert target == style.TARGET["markerfacecolor"] == "white"
        assert online == rank.lines[1].get_color()
        (key,) = legends(figure)
        entries = dict(zip((t.get_text() for t in key.get_texts()), key.legend_handles))
        assert entries["branch: target"].get_markerfacecolor() == "white"
        assert entries["branch: online"].get_markerfacecolor() != "white"
        assert {entry.get_marker() for entry in entries.values()} == {"o"}

    @pytest.mark.parametrize(
        ("exponents", "ticks"),
        [
            ([-0.3], ["−0.3"]),
            ([-1.0, -0.3], ["−1", "−0.3"]),
            ([-0.302, -0.301, -0.3], ["−0.302", "−0.301", "−0.3"]),
            ([-1.0, -0.31, -0.3], None),
            ([-0.3075, -0.305, -0.3025, -0.3], None),
            ([-1.0, -0.9, -0.7, -0.5, -0.3, -0.1], None),
        ],
    )
    def test_the_exponents_on_the_axis_do_not_meet(self, exponents, ticks):
        figure = plots.sweep([run("simsiam", "target_pow", p) for p in exponents])
        for axes in figure.axes:
            labels = [t for t in axes.get_xticklabels() if t.get_text()]
            if ticks:
                assert [label.get_text() for label in labels] == ticks
            low, high = axes.get_xlim()
            boxes = [t.get_window_extent() for t in labels if low <= t.get_position()[0] <= high]
            assert len(boxes) >= min(len(exponents), 3)
            assert all(one.x1 + 3 < other.x0 for one, other in itertools.pairwise(boxes))

    def test_the_online_classifier_is_called_that(self):
        only = lacking(run("simsiam", "target_pow", -0.5), "val/knn_acc1")
        only.metrics["val/acc1"][-1] = 81.0
        assert plots.sweep([only]).axes[0].get_ylabel() == "online acc. (%)"

    def test_without_an_exponent_it_says_what_is_missing(self):
        with pytest.raises(ValueError, match="_pow"):
            plots.sweep([run()])


def settings(count: int, seeds: int = 1, name: str = "simsiam") -> list[Run]:
    """As many settings as that, each of as many seeds."""
    return [
        run(name, "target_pow", round(-1 + i / count, 3), seed=seed, option=f"{i}")
        for i in range(count)
        for seed in range(seeds)
    ]


def series(axes) -> list:
    """The lines of a panel that have a name."""
    return [line for line in axes.lines if not str(line.get_label()).startswith("_")]


class TestManySettings:
    OF_SETTINGS = ("accuracies", "losses", "variants", "measures")

    @pytest.mark.parametrize("name", OF_SETTINGS)
    def test_a_panel_has_at_most_eight_series_and_a_key_to_them(self, name):
        figure = getattr(plots, name)(settings(30))
        filled = [axes for axes in figure.axes if axes.lines]
        assert max(len(series(axes)) for axes in filled) == 8
        drawn = {line.get_label() for axes in filled for line in series(axes)}
        keys = [[text.get_text() for text in key.get_texts()] for key in legends(figure)]
        assert len(drawn) == 30
        assert max(map(len, keys)) == 8
        assert len({label for key in keys for label in key}) == 30

    def test_a_sweep_of_many_filters_has_rows_of_eight(self):
        many = [run("simsiam", f"own_{i}", p) for i in range(11) for p in (-1, -0.5)]
        figure = plots.sweep(many)
        assert len(figure.axes) == 6
        assert max(len(series(axes)) for axes in figure.axes[::3]) == 8

    @pytest.mark.parametrize("count", [3, 12])
    def test_a_setting_has_one_colour_in_all_figures(self, count):
        many = settings(count)
        found: dict[str, set[str]] = {}
        for name in self.OF_SETTINGS:
            for axes in getattr(plots, name)(many).axes:
                for line in series(axes):
                    label = str(line.get_label()).removeprefix("SimSiam, ")
                    found.setdefault(label, set()).add(str(line.get_color()))
        assert len(found) == count
        assert all(len(colours) == 1 for colours in found.values())

    @pytest.mark.parametrize("name", ["accuracies", "measures", "comparison", "losses"])
    @pytest.mark.parametrize("count", [2, 12])
    def test_long_names_cover_nothing(self, name, count):
        long = [run("simsiam", f"{LONG}_{i}") for i in range(count)]
        assert covered(getattr(plots, name)(long)) == []

    @pytest.mark.parametrize("seeds", [1, 5])
    def test_keys_stay_inside_the_figure(self, seeds):
        for name in (*self.OF_SETTINGS, "comparison"):
            figure = getattr(plots, name)(settings(9, seeds))
            figure.draw_without_rendering()
            for key in legends(figure):
                box = key.get_window_extent()
                assert box.x1 <= figure.bbox.x1 + 1, name
                assert box.y0 >= -1, name

    def test_names_keep_both_of_their_ends(self):
        assert style.shortened("short", 8) == "short"
        assert style.shortened("simsiam_with_p=1", 8) == "sims…_p=1"

    def test_ranks_of_one_kind_of_output_share_their_limits(self):
        low = run("simsiam", "identity")
        low.metrics["erank/target"] = low.metrics["erank/target"] / 10
        softmax = run("swav", "none")
        softmax.metrics["erank/target"] = softmax.metrics["erank/target"] * 100
        limits = [axes.get_ylim() for axes in plots.effective_rank([run(), low, softmax]).axes]
        assert limits[0] == limits[1]
        assert limits[2][1] > 10 * limits[0][1]

    def test_what_diverged_is_a_cross_that_no_line_meets(self):
        whole = [run("simsiam", "target_pow", p) for p in (-1.0, -0.5)]
        gone = replace(run("simsiam", "target_pow", -0.7), diverged=4)
        accuracy = plots.sweep([*whole, gone]).axes[0]
        assert lines(accuracy, "target filter h(σ) = σ^p").get_xdata().tolist() == [-1.0, -0.5]
        assert lines(accuracy, "_diverged").get_xdata().tolist() == [-0.7]
        crosses = {line.get_marker() for line in plots.comparison([*whole, gone]).axes[0].lines}
        assert crosses == {"o", "X"}


class TestFirstPicture:
    def test_one_setting_has_its_ranks_and_accuracies(self):
        ranks, right = plots.overview([run(epochs=4)]).axes
        assert [line.get_label() for line in ranks.lines] == ["target", "online"]
        assert lines(right, "kNN").get_ydata().tolist() == [70]
        unlabelled = lacking(run(), "val/knn_acc1", "val/acc1")
        assert plots.overview([unlabelled]).axes[1].get_ylabel() == "training loss"
        with pytest.raises(ValueError, match="several settings"):
            plots.overview(settings(2))

    def test_settings_stand_from_the_most_accurate_down(self):
        many = settings(3)
        for value, one in zip((70, 90, 80), many):
            one.metrics["val/knn_acc1"][-1] = value
        accuracy, rank, gap = plots.comparison(many).axes
        names = [text.get_text() for text in accuracy.get_yticklabels()]
        assert [name.split("-")[1][:5].rstrip("}$") for name in names] == ["1", "0.333", "0.667"]
        means = [line for line in accuracy.lines if line.get_markersize() == 6]
        heights = {line.get_xdata()[0]: line.get_ydata()[0] for line in means}
        assert heights[70] < heights[80] < heights[90]
        assert rank.get_xlabel() == "effective rank before any filter"
        assert gap.get_xlabel() == "gap (target − online)"


class TestGroups:
    def test_seeds_and_machines_are_one_setting(self):
        same = [run(seed=0), run(seed=1, logger="csv"), run(seed=2, dataset__root="/data")]
        (group,) = groups(same)
        assert group.label == "SimSiam"
        assert [member.seed for member in group.runs] == [0, 1, 2]

    def test_settings_of_one_label_get_what_differs(self):
        found = groups([run("vanilla", "none", method__last_bn=x) for x in (True, False)])
        assert [group.label for group in found] == [
            *("Vanilla (last_bn=True)", "Vanilla (last_bn=False)"),
        ]

    def test_labels_stay_apart_where_many_keys_differ(self):
        options = {f"method__{name}": 1 for name in "abcd"}
        others = dict.fromkeys(options, 2)
        alike = [run(**options), run(**{**options, "method__d": 9}), run(**others)]
        assert len({group.label for group in groups(alike)}) == 3

    def test_data_sets_are_named_where_there_are_several(self):
        found = groups([run(), run("byol", dataset="cifar10"), run("byol", "identity")])
        assert [group.label for group in found] == [
            *("SimSiam, digits", "BYOL, cifar10", "BYOL, identity, digits"),
        ]
        assert [group.variant for group in found] == [
            *("learnable predictor digits", "learnable predictor cifar10", "identity, digits"),
        ]


class TestWhichAreDrawn:
    """The lists by which the report names numbers are those of what is drawn."""

    def labels(self, figure: Figure) -> set[str]:
        return {str(line.get_label()) for axes in figure.axes for line in axes.lines}

    def test_variants(self):
        runs = [
            *(run(), run("byol"), run("dino", "none"), run("simsiam", "online_log1p")),
            *(run("simsiam", "target_pow", -0.5), lacking(run("simsiam", "linear"), "spectra")),
        ]
        drawn = drawn_in_variants(groups(runs))
        assert {group.variant for group in drawn} == self.labels(plots.variants(runs))
        assert len(drawn) == 3

    def test_symmetric(self):
        runs = [run(), run("simsiam", "identity"), run("byol"), run("vanilla", "none")]
        names = {group.label for group in drawn_in_symmetric(groups(runs))}
        assert names == {"SimSiam", "Vanilla"}
        assert names <= self.labels(plots.symmetric(runs))
        assert drawn_in_symmetric(groups(runs[:3])) == []

    def test_sweep(self):
        runs = [run(), run("byol"), run("simsiam", "target_pow", -0.5)]
        names = [group.label for group in drawn_in_sweep(groups(runs))]
        assert names == ["SimSiam", "SimSiam, h(σ) = σ^-0.5"]


class TestStyle:
    def test_twenty_labels_are_apart_without_colour(self):
        looks = [
            (str(look["linestyle"]), look["marker"], look["color"])
            for look in style.looks(map(str, range(140))).values()
        ]
        assert len({look[:2] for look in looks[:20]}) == 20
        assert len(set(looks)) == 140

    def test_branches_are_apart_for_the_colour_blind_and_in_grey(self):
        assert (style.TARGET["color"], style.ONLINE["color"]) == (VERMILION, BLUE)
        for part in ("linestyle", "marker"):
            assert style.TARGET[part] != style.ONLINE[part]

    @pytest.mark.parametrize(
        ("epochs", "least", "most"), [(3, 3, 3), (10, 10, 10), (400, 8, 20), (1, 1, 1)]
    )
    def test_long_lines_have_a_few_markers(self, epochs, least, most):
        figure = plots.losses([run(epochs=epochs)])
        figure.axes[0].lines[0].set_gid("line")
        figure.savefig(vectors := io.BytesIO(), format="svg")
        (line,) = ElementTree.fromstring(vectors.getvalue()).findall(".//*[@id='line']")
        markers = line.findall(".//{http://www.w3.org/2000/svg}use")
        assert least <= len(markers) <= most

    @pytest.mark.parametrize("epochs", [1, 2, 5, 12, 30, 400, 1000])
    def test_epochs_are_counted_from_1(self, epochs):
        (axes,) = plots.effective_rank([run(epochs=epochs)]).axes
        left, right = axes.get_xlim()
        shown = [tick for tick in axes.get_xticks() if left <= tick <= right]
        assert shown[0] == 1
        assert all(tick == int(tick) for tick in shown)
        assert min(epochs, 4) <= len(shown) <= 6

    def test_panels_keep_their_size_under_long_titles(self):
        short, long = run("simsiam", "identity"), run("simsiam", LONG)
        heights = [
            plots.effective_rank([run(), other]).axes[0].get_window_extent().height
            for other in (short, long)
        ]
        assert heights[0] == pytest.approx(heights[1], rel=0.05)

    def test_exponents_stand_high(self):
        assert typeset("h(σ) = σ^p") == "h(σ) = σ$^{p}$"
        assert typeset("σ^(-0.1…-0.5) at $1") == r"σ$^{\mathrm{(-0.1…-0.5)}}$ at \$1"

    def test_drawing_leaves_no_trace(self):
        from matplotlib import pyplot

        before = dict(matplotlib.rcParams)
        plots.effective_rank([run()])
        assert dict(matplotlib.rcParams) == before
        assert pyplot.get_fignums() == []


def test_files_are_sharp_searchable_and_the_same_each_time(tmp_path):
    paths = plots.save(plots.effective_rank([run()]), tmp_path / "new", "erank")
    assert [path.name for path in paths] == ["erank.png", "erank.pdf"]
    png, pdf = (path.read_bytes() for path in paths)
    figure = plots.effective_rank([run()])
    width = int.from_bytes(png[16:20], "big")
    assert width == pytest.approx(150 * figure.get_size_inches()[0], abs=1)
    assert b"/FontFile2" in pdf, "TrueType fonts are embedded"
    assert b"/Type3" not in pdf
    again = plots.save(figure, tmp_path / "again", "erank")
    assert [path.read_bytes() for path in again] == [png, pdf]


def test_a_figure_becomes_bytes():
    figure = Figure((2, 1), dpi=50, facecolor=(1, 0, 0.2))
    image = style.pixels(figure)
    assert image.shape == (50, 100, 3)
    assert image.dtype == np.uint8
    assert image[0, 0].tolist() == [255, 0, 51]


def test_families_have_blocks_of_their_own_where_one_panel_is_not_enough():
    names = ("simclr", "byol", "vicreg", "dino", "mocov2plus", "barlow_twins", "simsiam", "nnclr")
    few = groups([run(method) for method in names])
    assert [len(block) for block in blocks(few)] == [8]
    several = groups([run(method) for method in (*names, "wmse")])
    families = [{group.first.described.family for group in block} for block in blocks(several)]
    assert families == [{"contrastive"}, {"distilling"}, {"redundancy-reducing"}]
    for block in blocks(several):
        seen = [tuple(map(str, looks(several)[group.label].values())) for group in block]
        assert len(set(seen)) == len(block)
    one = groups([run("simsiam", "target_pow", p=-i / 10) for i in range(1, 11)])
    assert [len(block) for block in blocks(one)] == [8, 2]
