"""One page of real, broken and hostile runs; verdicts by their rules; the paper's rows."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from support.report_pages import Page, erank, run, write

from rdm_solo import cli, report, runs
from rdm_solo.evaluate import roles
from rdm_solo.report import captions, entry, measured, tables, typesetting, verdicts
from rdm_solo.report import figures as report_figures
from rdm_solo.report.page import page
from rdm_solo.report.paper_comparison import against_paper
from rdm_solo.runs import failures, roles_file
from rdm_solo.runs.groups import groups
from rdm_solo.train import sweep

HOSTILE = "<script>alert(1)</script> & \"'"


def broken(root: Path) -> None:
    """Runs that broke off, lack something, or are none."""
    write(root / "began", -0.5, 7, epochs=1, dataset=HOSTILE)
    (root / "began" / "spectra" / "epoch_0001.npz").write_bytes(b"PK\x03\x04 half")
    (root / "began" / "summary.json").unlink()
    write(root / "off", -0.5, 8, dataset=HOSTILE)
    shutil.rmtree(root / "off" / "spectra")
    (root / "off" / "metrics.csv").write_text("epoch,train/loss,val/acc1\n1,-1,\n2,-2,\n3,-3,\n")
    write(root / "none", -0.5, 9, epochs=0)
    failures.note(root / "none", "all rows hold NaN: σ^2 <b>diverged</b>.")
    (root / "other" / ".hydra").mkdir(parents=True)
    (root / "other" / ".hydra" / "config.yaml").write_text("a: [")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str, str]:
    """The page's file, its text, and what the command printed, of all kinds of runs at once."""
    root = tmp_path_factory.mktemp("runs <b>&")
    for p, seed in ((-0.5, 0), (-0.5, 1), (-1.0, 0)):
        write(root / f"<i>&{seed}_p={p}", p, seed, dataset=HOSTILE)
    for method, name in (("byol", "learnable"), ("simsiam", "learnable"), ("vanilla", "none")):
        chosen = {"method": {"name": method}, "filter": {"name": name}}
        write(root / method, None, 0, dataset=HOSTILE, **chosen)
    broken(root)
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(printed):
        # Iterating Theorem 4 takes as long as all the rest, and has tests of its own.
        patch.setattr(report_figures, "PREDICTED", 0)
        entry.main([str(root), "--out", str(root / "out"), "--no-checkpoints"])
    path = root / "out" / entry.NAME
    return path, path.read_text(encoding="utf-8"), printed.getvalue()


def test_the_page_is_whole_and_needs_nothing_else(made):
    path, text, _ = made
    found = Page(text)
    assert found.all("html") == [{"lang": "en"}]
    ids = [attributes["id"] for _, attributes in found.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in found.seen if tag in ("h1", "h2", "h3", "h4")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(levels)), "no level is left out"
    assert all(th["scope"] in ("row", "col") for th in found.all("th"))
    assert not found.all("script")
    assert not found.all("link")
    assert not found.all("img")
    drawings = [svg for svg in found.all("svg") if svg.get("role") == "img"]
    assert len(drawings) > 5
    assert all(svg["aria-label"] for svg in drawings)
    uses = [use["href"] for use in found.all("use")]
    assert {target[:1] for target in uses} == {"#"}
    assert {target[1:] for target in uses} <= set(ids)
    assert set(re.findall(r"url\(#([^)]+)", text)) <= set(ids)
    for link in found.all("a"):
        target = link["href"]
        assert target[1:] in ids if target.startswith("#") else (path.parent / target).is_file()
    style = text[text.index("<style>") : text.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert "@media print" in style
    assert "prefers-color-scheme: dark" in style


def test_figures_are_drawn_and_lie_beside_the_page(made):
    path, text, _ = made
    # One is of a single setting, and these runs are of a version without the other measures.
    for name in {drawing.name for drawing in captions.DRAWINGS} - {"overview", "measures"}:
        assert (path.parent / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert (path.parent / f"{name}.pdf").read_bytes().startswith(b"%PDF")
        assert f'id="{name}"' in text
    said = "Predicted ranks are drawn for the first 0 settings only"
    assert said in "".join(Page(text).text), "what is not drawn says why"


def test_names_of_runs_and_folders_are_text(made):
    text = made[1]
    assert HOSTILE not in text
    words = "".join(Page(text).text)
    assert HOSTILE in words
    assert "<i>&" in words
    assert not Page(text).all("script")


def test_what_is_missing_is_said_and_the_rest_is_there(made):
    words = "".join(Page(made[1]).text)
    for said in (
        *("1 of 3 epochs", "epoch_0001.npz cannot be read", "no spectra", "no epoch has ended"),
        *("config.yaml cannot be read", "erank/gap was never measured", "no accuracy"),
        "no epoch has ended; it failed: all rows hold NaN",
    ):
        assert said in words
    assert "python -m rdm_solo.train -m method=simsiam p=-0.5 'dataset.root=a b' seed=0,1" in words


def test_the_command_ends_with_a_table_and_the_place(made):
    path, _, printed = made
    lines = printed.splitlines()
    assert lines[0].startswith("setting")
    assert "yes, in every epoch (this filter makes it)" in printed
    left_out = [line for line in lines if line.startswith("left out: ")]
    assert len(left_out) == 2
    assert "config.yaml cannot be read" in left_out[0]
    assert left_out[1].endswith("it failed: all rows hold NaN: σ^2 <b>diverged</b>.")
    assert str(path) in lines[-1]


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path, capsys):
    write(tmp_path / "run", -0.5, 0, epochs=0)
    (tmp_path / "file").write_text("")
    for arguments, said in (
        ([str(tmp_path / "nowhere")], "is not a folder"),
        ([str(tmp_path / "run" / ".hydra")], "holds no run"),
        ([str(tmp_path / "run"), "--out", str(tmp_path / "file" / "out")], "--out FOLDER"),
    ):
        with pytest.raises(SystemExit) as left:
            entry.main(arguments)
        assert left.value.code == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1


def test_a_run_without_an_epoch_still_makes_a_page(tmp_path, capsys):
    write(tmp_path / "run", -0.5, 0, epochs=0)
    entry.main([f"run={tmp_path / 'run'}"])
    assert capsys.readouterr().out.startswith("left out: SimSiam, h(σ) = σ^-0.5, seed 0 (")
    text = (tmp_path / "run" / "report" / entry.NAME).read_text()
    found = Page(text)
    assert "no epoch has ended" in "".join(found.text)
    assert "No epoch of any run has ended." in "".join(found.text)
    assert not found.all("table")  # of nothing


@pytest.mark.parametrize(
    ("changed", "answer", "good"),
    [
        ({"erank__gap": [1, 1, 1], "p": None}, "yes, in every epoch", True),
        ({"erank__gap": [1, 1, 1]}, "yes, in every epoch (this filter makes it)", True),
        ({"erank__gap": [1, 1, 1], "p": -1.5}, "yes, in every epoch", None),
        ({"erank__gap": [1, 1, 1], "method": "byol"}, "yes, in every epoch", True),
        (
            {"erank__gap": [1, 1, 1], "p": None, "method": "byol", "filter": "identity"},
            "yes, in every epoch",
            None,
        ),
        (
            {"erank__gap": [1, 1, 1], "p": None, "feature__spread": [0.9, 0.001, 0.001]},
            "yes, in every epoch",
            None,
        ),
        ({"erank__gap": [1, 1, -1], "p": None}, "in most epochs", None),
        ({"erank__gap": [1, -1, -1], "p": None}, "in few epochs", False),
        ({"erank__gap": [-1, -1, -1]}, "no, the online branch leads", False),
        ({"erank__gap": [1e-9, 0, -1e-9]}, "no, both ranks are the same", None),
        ({"erank__gap": [2e-6] * 3, "p": None}, "no, both ranks are the same", None),
        (
            {"epochs": 20, "erank__gap": [0] * 18 + [-1] * 2, "p": None},
            "no, both ranks are nearly the same",
            None,
        ),
        (
            {"epochs": 100, "erank__gap": [1] * 95 + [-1] * 5, "p": None},
            "no longer: the online branch leads in the last 5 measured epochs",
            False,
        ),
        (
            {"epochs": 20, "erank__gap": [-1] + [1] * 19, "p": None},
            "yes, in nearly every epoch",
            True,
        ),
        ({"erank__gap": [np.nan] * 3}, "not measured", None),
    ],
)
def test_whether_the_target_leads(changed, answer, good):
    found = verdicts.leads([run(**changed)])
    assert (found.answer, found.good) == (answer, good)


@pytest.mark.parametrize("method", ["mocov2plus", "nnclr"])
def test_methods_of_which_the_mechanism_says_nothing_are_not_judged_by_it(method):
    behind = {"erank__gap": [-1, -1, -1], "p": None, "method": method}
    found = verdicts.leads([run(**behind)])
    assert (found.answer, found.good) == ("no, the online branch leads", None)
    assert "Nothing says that the target should lead" in found.caveat
    assert verdicts.low_pass([run(**behind)]).good is None


def test_what_a_setting_forces_is_called_that():
    def caveat(**changed) -> str:
        return verdicts.leads([run(**changed)]).caveat

    assert "in each batch" in caveat()
    assert "keeps the target's rank above the online one's in each batch" in caveat()
    assert "unit length" in caveat()
    assert "wrong way" in caveat(p=0.5)
    assert caveat(p=None) == "Nothing in the setting forces a gap: it was learned."
    assert "lag" in caveat(p=None, method="byol")
    assert "Fixed temperatures" in caveat(p=None, method="dino")
    assert "ranks are always equal" in caveat(p=None, method="vanilla")
    assert "lag" in caveat(p=None, method="byol", filter="identity")
    assert "ranks are always equal" in caveat(p=0.0)


def test_an_exponent_below_minus_one_turns_the_order_round_and_forces_nothing():
    found = verdicts.leads([run(-1.5, erank__gap=[1, 1, 1])])
    assert "makes" not in found.answer + found.caveat
    assert "reverses the order" in found.caveat
    index = np.arange(1, 5, dtype=float)
    steep = np.array([1, 1, 1, 1e-6])
    assert erank(index**-2.0 / 2) < erank(index ** (-2.0 * 0.5)), "as p = -0.5 does"
    assert erank(steep**-0.5) < erank(steep), "the target of p = -1.5 has the lower rank"


def test_whitening_says_what_it_makes_true_by_itself():
    whitened = run(-1.0)
    assert "as high as the batch allows" in verdicts.leads([whitened]).caveat
    assert "directional test says nothing" in verdicts.low_pass([whitened]).caveat
    online = run(-1.0, filter="online_pow")
    assert "wrong way" in verdicts.leads([online]).caveat
    assert "as high as the batch allows" not in verdicts.leads([run(-0.7)]).caveat


def test_byols_target_is_another_network_so_that_a_filter_forces_its_share_alone():
    found = verdicts.leads([run(-0.5, method="byol", erank__gap=[1, 1, 1])])
    assert "makes" not in found.answer + found.caveat
    assert "raises the target's rank in each batch" in found.caveat


QUEUE = "the queue that the target is drawn from"


@pytest.mark.parametrize(
    ("method", "p", "chosen", "says"),
    [
        ("nnsiam", None, "none", "The target is drawn from a queue of earlier outputs"),
        ("nnsiam", None, "identity", f"the gap comes only from {QUEUE}."),
        ("nnsiam", 0.0, "target_pow", f"the gap comes only from {QUEUE}."),
        ("nnbyol", None, "identity", f"only from the target network's lag and {QUEUE}."),
        ("nnsiam", -0.5, "target_pow", "raises the target's rank in each batch (Theorem 3)"),
        ("nnsiam", 1.0, "online_pow", "lowers the online rank in each batch (Theorem 3)"),
        ("nnsiam", -0.5, "target_pow", f"Of the gap, {QUEUE} may add a part or take one away."),
        ("nnbyol", 0.5, "target_pow", f"lag and {QUEUE} may add a part or take one away."),
    ],
)
def test_a_queue_is_named_among_what_makes_a_gap(method, p, chosen, says):
    """The target's outputs are those of other images, so that no filter alone makes the gap."""
    found = verdicts.leads([run(p, method=method, filter=chosen, erank__gap=[1, 1, 1])])
    assert found.answer == "yes, in every epoch"
    assert says in found.caveat
    assert "always equal" not in found.caveat


def test_a_collapse_is_said_beside_its_gap():
    fallen = run(None, method="byol", erank__gap=[1, 1, 1], feature__spread=[0.9, 1e-3, 1e-3])
    assert "a gap does not mean" in verdicts.leads([fallen]).caveat
    assert "a gap does not mean" not in verdicts.leads([run()]).caveat


@pytest.mark.parametrize(
    ("by_rank", "by_direction", "answer"),
    [
        (1.0, 0.9, "yes, by both tests"),
        (0.95, 0.1, "by sorted eigenvalues only"),
        (0.2, 0.6, "by directions only"),
        (0.2, 0.1, "no clear slope"),
        (-1.0, -0.9, "no, high-pass: the wrong way"),
    ],
)
def test_whether_the_filter_is_low_pass(by_rank, by_direction, answer):
    columns = {
        "filter__monotonicity": [0, 0, by_rank],
        "filter__monotonicity_directional": [0, 0, by_direction],
    }
    assert verdicts.low_pass([run(**columns)]).answer == answer
    lagging = run(p=None, method="byol", filter="identity", **columns)
    assert verdicts.low_pass([lagging]).answer == "there is no filter"
    assert verdicts.low_pass([lagging]).good is None


@pytest.mark.parametrize("dimensions", [[], [np.nan] * 3, [[8, 8]] * 3, [-5] * 3])
def test_odd_dimensions_in_a_folder_do_not_cost_the_page(dimensions):
    odd = run()
    odd.spectra["dimensions"] = np.array(dimensions)
    assert verdicts.collapsed([odd]).answer.startswith("no")


FEW, COMPLETELY = "yes, into few directions", "yes, completely"


@pytest.mark.parametrize(
    ("changed", "answer"),
    [
        ({}, "no"),
        ({"feature__spread": [0.9, 0.01, 0.01]}, "yes, completely"),
        (
            {"feature__spread": [0.9, 0.01, 0.02]},
            "the variance is below its bound, but rising",
        ),
        ({"feature__spread": [0.9, 1.2e-5, 1.4e-5]}, "yes, completely"),
        ({"feature__spread": [0.9, 0.01, 0.02], "erank__centred": [5, 1.02, 1.02]}, FEW),
        ({"feature__spread": [0.9, 0.06, 0.06]}, "yes, completely"),
        (
            {"method": "swav", "p": None, "erank__projection": [3, 1.1, 1.1]},
            "yes, all images get nearly the same assignment",
        ),
        (
            {"feature__spread": [0.9, 0.15, 0.15]},
            "no, but 85 % of the outputs' second moment is their mean",
        ),
        ({"feature__spread": [0.9, 0.21, 0.21]}, "no"),
        ({"feature__spread": [0.9, 0.19, 0.19], "erank__centred": [5, 1.02, 1.02]}, FEW),
        ({"feature__spread": [0.01, 0.9, 0.9]}, "no"),
        ({"erank__centred": [5, 1.1, 1.1]}, FEW),
        ({"erank__centred": [np.nan] * 3}, "no complete collapse; directions were not measured"),
        ({"erank__centred": [5, 1.1, 1.1], "method": "dino", "p": None}, FEW),
        ({"epochs": 1}, "too early to say"),
        ({"feature__spread": [np.nan] * 3, "feature__variance": [0.01] * 3}, "yes, completely"),
        ({"feature__spread": [np.nan] * 3, "feature__variance": [np.nan] * 3}, "not measured"),
    ],
)
def test_whether_anything_collapsed(changed, answer):
    assert verdicts.collapsed([run(**changed)]).answer == answer


def test_a_softmax_of_a_watched_run_is_known_by_its_spectra():
    one = run(method="swav", p=None, erank__projection=[3, 1.1, 1.1])
    config = OmegaConf.merge(one.config, {"watched": {"tokens": "mean"}})
    assert verdicts.collapsed([replace(one, config=config)]).answer == "no"
    watched = replace(one, config=config, spectra={**one.spectra, "lam_logits": np.ones((3, 8))})
    assert verdicts.collapsed([watched]).answer == "yes, all images get nearly the same assignment"


def test_seeds_that_disagree_are_counted():
    three = [run(p=None, seed=s, erank__gap=[sign] * 3) for s, sign in enumerate((1, 1, -1))]
    found = verdicts.leads(three)
    assert found.good is None
    assert (
        found.answer
        == "yes, in every epoch (2 of 3 runs); no, the online branch leads (1 of 3 runs)"
    )


def test_of_a_run_that_diverged_nothing_else_is_said():
    diverged = replace(run(p=None, epochs=2), diverged=3)
    assert [(v.answer, v.good) for v in verdicts.verdicts([diverged])] == [
        ("diverged in epoch 3", False)
    ] * 3
    found = verdicts.leads([run(p=None, seed=1), diverged])
    assert (found.answer, found.good) == (
        "yes, in every epoch (1 of 2 runs); diverged in epoch 3 (1 of 2 runs)",
        None,
    )


def test_means_leave_out_what_broke_off():
    runs_ = [run(seed=0), run(seed=1), run(seed=2, epochs=1)]
    ranks, _ = tables.last_values(groups(runs_))
    assert ranks.rows[0][1] == "2"
    assert "seed 2" in " ".join(ranks.notes)


def shown(*members: runs.Run) -> str:
    """The text of the page's first screen and of what it says of collapse and mechanism."""
    text = page("the title", groups(members))
    parts = re.findall(r'<dl class="answers.*?</dl>', text, re.DOTALL)
    for key in ("alive", "mechanism"):
        parts += re.findall(rf'<section id="{key}".*?</section>', text, re.DOTALL)
    return " ".join("".join("".join(Page(part).text) for part in parts).split())


def test_a_run_behind_the_others_is_named_and_counts_nowhere():
    members = [run(seed=0), run(seed=1), run(seed=2, epochs=1, erank__gap=[-1.0])]
    alone = [run(seed=0), run(seed=1)]
    printed = entry.verdict_table(groups(members)).splitlines()
    assert printed[:-1] == entry.verdict_table(groups(alone)).splitlines()
    assert "seed 2, which has 1 of 3 epochs" in printed[-1]
    printed = sweep.table(members).splitlines()
    assert printed[:-1] == sweep.table(alone).splitlines()
    assert "seed 2, which has 1 of 3 epochs" in printed[-1]
    said = "; not counted: seed 2 (1 of 3 epochs)"
    assert said in shown(*members)
    assert shown(*members).replace(said, "") == shown(*alone)
    assert len(tables.each(groups(members)).rows) == 3


def test_a_run_that_diverged_is_named_everywhere_and_in_no_mean():
    """Also where it came further than the others, or not through its first epoch."""
    for epochs in (0, 1, 3):
        bad = replace(run(seed=2), diverged=epochs + 1, spectra={})
        bad.metrics.update({name: values[:epochs] for name, values in bad.metrics.items()})
        members = [run(seed=0, epochs=2), bad]
        said = f"diverged in epoch {epochs + 1}"
        for printed in (entry.verdict_table(groups(members)), sweep.table(members)):
            assert f"seed 2, which {said}" in printed
        assert entry.verdict_table(groups(members)).count(f"{said} (1 of 2 runs)") == 3
        assert shown(*members).count(said) == 6  # twice in each answer, and behind the seed
        ranks, _ = tables.last_values(groups(members))
        assert ranks.rows[0][1:3] == tables.last_values(groups(members[:1]))[0].rows[0][1:3]
        assert f"seed 2 ({said})" in " ".join(ranks.notes)
        assert tables.each(groups(members)).rows[1][-3:] == [said] * 3
    alone = [replace(run(epochs=2), diverged=3)]
    assert f"! {said}" not in sweep.table([run()])
    assert sweep.table(alone).endswith("! diverged in epoch 3")
    at_once = replace(run(), diverged=1, metrics={}, spectra={})
    assert sweep.table([at_once]).splitlines()[1].endswith("1  –        ! diverged in epoch 1")
    assert len(sweep.table([at_once, run(p=-1)]).splitlines()) == 3
    assert entry.verdict_table(groups(alone)).count("diverged in epoch 3") == 3


def test_a_value_that_the_last_epoch_lacks_says_of_which_it_is():
    knn = [90.0, 91.0, np.nan]
    seeds = [run(seed=s, val__knn_acc1=knn) for s in (0, 1)]
    assert tables.last_values(groups(seeds))[0].rows[0][-2] == "91.0 ± 0.0 (epoch 2)"
    assert "91.00 ± 0.00 (epoch 2)" in sweep.table(seeds)
    seeds[1] = run(seed=1, val__knn_acc1=[9.0, 9.0, 9.0])
    assert tables.last_values(groups(seeds))[0].rows[0][-2] == "9.0 (n = 1)"
    lacks = run(erank__gap=[1, 1, np.nan], train__loss=[1, 1, 1])
    assert "erank/gap was last measured in epoch 2" in entry.incomplete([lacks])[0]
    broken = replace(lacks, measured={"erank/gap": np.array([True, True, True])})
    assert "erank/gap is not finite in epoch 3" in entry.incomplete([broken])[0]


def test_warnings_are_told_once_a_kind_with_every_seed():
    seeds = []
    for seed in range(3):
        one = run(seed=seed)
        words = {"kind": "negative gap", "epoch": 3 + seed, "text": f"gap of {seed} in σ^0.5"}
        one.summary["warnings"] = [words]
        seeds.append(one)
    assert (
        "Warnings during training Seed 0: gap of 0 in σ0.5 Likewise seed 1 (epoch 4). Likewise "
        "seed 2 (epoch 5)."
    ) in shown(*seeds)
    assert "Warnings during training gap of 1 in σ0.5" in shown(seeds[1])
    seeds.append(run(None))
    assert "training SimSiam, h(σ) = σ-0.5, seed 0: gap of 0 in σ0.5" in shown(*seeds)
    seeds[0].summary["warnings"] = None
    assert "Warnings" not in shown(seeds[0])


def test_a_seed_that_is_there_twice_is_named():
    assert "2 times" in " ".join(entry.incomplete([run(), run()]))
    assert "times" not in " ".join(entry.incomplete([run(), run(seed=1)]))


@pytest.mark.parametrize(
    "torn",
    [
        '{"protocol": [{"seed": 0, "to',
        '{"protocol": [{"seed": 0, "top1": NaN, "top5": 99, "protocol": {}}]}',
        '{"cached": [{"seed": 0, "top1": %s, "top5": 99, "protocol": {}}]}' % ("1" * 400),
        '{"cached": 5}',
    ],
)
def test_evaluations_that_cannot_be_read_are_named(torn, tmp_path):
    write(tmp_path / "run", None, 0)
    (tmp_path / "run" / "linear.json").write_text(torn)
    (found,) = runs.find([tmp_path / "run"])
    assert "linear.json cannot be read" in " ".join(entry.incomplete([found]))
    assert not measured.linear_accuracies([found])


def preset(folder: Path, *overrides: str) -> runs.Run:
    """A run of the paper's preset that has ended and was evaluated."""
    chosen = ["experiment=cifar10/simsiam_target_pow", "p=-0.5", "max_epochs=100", *overrides]
    with initialize_config_dir(str(cli.config_folder()), version_base="1.3"):
        cfg = compose("config", overrides=chosen)
    record = {"seed": 0, "top1": 78.0, "top5": 99.0, "protocol": {"lr": 30}}
    epochs = {"epoch": np.arange(1, cfg.max_epochs + 1)}
    return runs.Run(folder, cfg, epochs, linear={"protocol": [record]})


def test_the_papers_number_stands_beside_a_run_of_its_setting(tmp_path):
    table, why = against_paper(groups([preset(tmp_path)]))
    assert not why
    assert [list(row) for row in table.rows] == [
        [
            *("SimSiam, h(σ) = σ^-0.5", "cifar10", "100", "linear top-1 %"),
            *("78.17", "78.00", "1", "nothing known"),
        ]
    ]
    table, _ = against_paper(groups([preset(tmp_path, "batch_size=128")]))
    assert "batch_size=128 (preset: 256)" in table.rows[0][-1]
    table, why = against_paper(groups([preset(tmp_path, "max_epochs=50")]))
    assert table is None
    assert "100, 200, 400 epochs, these runs have 50" in why[0]
    table, why = against_paper(groups([preset(tmp_path, "p=-0.9")]))
    assert table is None
    assert "p = -0.9" in why[0]
    assert against_paper(groups([run()]))[1] == [
        "SimSiam, h(σ) = σ^-0.5: the paper has no numbers on digits"
    ]


def test_formulas_are_set_and_escaped():
    assert typesetting.typeset("σ^(-0.1…-0.5, linear) & λ_p") == (
        "σ<sup>(-0.1…-0.5, linear)</sup> &amp; λ<sub>p</sub>"
    )
    assert str(typesetting.typeset("<b>")) == "&lt;b&gt;"


@pytest.mark.parametrize("place", ["runs/x^2_λ_p", "a b/<i>&_C_z^3", "x^30", "..", "C:\\σ^p"])
def test_paths_stay_letter_for_letter(place):
    shown = typesetting.verbatim(
        f"σ^2 ({place}): {place}/summary.json holds none.", [place, "runs"]
    )
    assert shown.startswith("σ<sup>2</sup> (")
    found = Page(f"<p>{shown}</p>")
    assert f"({place}): {place}/summary.json holds none." in "".join(found.text)
    assert len(found.all("sup")) == 1
    assert not found.all("sub")
    assert len(found.all("code")) == (0 if place == ".." else 2)


def test_a_word_that_is_a_folders_name_too_stays_a_word():
    assert typesetting.verbatim("the run ended", ["run"]) == "the run ended"
    assert (
        typesetting.verbatim("30 of 30 epochs, see runs/301", ["30", "runs/30"]).count("code") == 0
    )


def test_runs_and_titles_have_names_that_stay_apart(tmp_path, monkeypatch):
    for method in ("byol", "swav"):
        write(tmp_path / method / "30", None, 30)
    monkeypatch.setattr(report_figures, "draw", lambda *_: ([], []))  # of the titles alone
    given = [tmp_path / method / "30" for method in ("byol", "swav")]
    text = report.write(given, tmp_path / "out", checkpoints=False).read_text()
    assert "<title>byol/30, swav/30 · rdm_solo</title>" in text
    assert "<h1><code>byol/30</code>, <code>swav/30</code></h1>" in text
    found = runs.find([tmp_path])
    folders = [row[1] for row in tables.each(groups(found)).rows]
    assert folders == ["<code>byol/30</code>", "<code>swav/30</code>"]


def test_the_numbers_under_a_figure_are_of_the_settings_in_it(made):
    figures = re.findall(r'<h3 id="(\w+)">(.*?)</figure>', made[1], re.DOTALL)
    named = {name: re.findall(r"<li>(.*?): ", inner) for name, inner in figures}
    powers = ["SimSiam, h(σ) = σ<sup>-0.5</sup>", "SimSiam, h(σ) = σ<sup>-1</sup>"]
    assert named["variants"] == [*powers, "SimSiam"]
    assert named["symmetric"] == ["SimSiam", "Vanilla"]
    assert named["losses"] == [*powers, "BYOL", "SimSiam", "Vanilla"]


def test_captions_fit_one_setting_and_name_the_papers_numbers():
    for drawing in captions.DRAWINGS:
        assert not {"Above,", "Below,"} & set(drawing.caption.split())
        assert "(Figure" not in drawing.title
    losses = next(d for d in captions.DRAWINGS if d.name == "losses")
    assert "0 for BYOL" in losses.caption


@pytest.mark.parametrize(("own", "flat"), [(1.05, True), (1.3, False)])
def test_swavs_level_lines_are_called_flat_only_where_they_are(own, flat):
    lam = np.array([0.1, 0.01])
    series = tuple(
        roles_file.Series(name, group, lam, np.array(value), 1.0, -0.25, 4.0)
        for name, group, value in (
            ("3 iterations, ε = 0.05", "ε = 0.05", [1.0, 2.0]),
            ("1 iteration, ε = 0.1", "ε = 0.1", [1.0, own]),
        )
    )
    about = (Path("run"), "swav", "SwAV", 0, "target", series, "3 iterations, ε = 0.05")
    words = report_figures.curves_in_words(roles_file.Roles(*about, 4.0, 64, 32, 14))
    assert words.startswith("SwAV: slope -0.25 (3 iterations, ε = 0.05); with ε = 0.1")
    assert ("flat" in words) is flat
    assert f"between 1.00 and {own:.2f}" in words


def test_what_a_log_axis_leaves_out_is_counted():
    lam = np.array([0.1, 0.01, 0.001, 0.0001])
    values = {"g": [1, 0.5, 0, 0], "omega": [0.9, 0.5, -0.1, np.nan], "omega, directional": [1] * 4}
    series = tuple(
        roles_file.Series(name, "one", lam, np.array(value, dtype=float), 1.0, 0.3, 4.0)
        for name, value in values.items()
    )
    about = roles_file.Roles(Path("run"), "byol", "BYOL", 0, "online", series, "g", 4.0, 64, 32, 14)
    assert report_figures.curves_in_words(about) == (
        "BYOL: slope 0.30 (g); slope 0.30 (ω); g is zero at 2 of 4 eigenvalues; "
        "ω is not positive at 2 of 4 eigenvalues"
    )
    figure = roles.draw([about, replace(about, seed=1)])
    assert figure.axes[0].get_title(loc="left") == "BYOL (thin: 1 other seed)"
    assert figure.get_supxlabel() == (
        "On the log axes ω ≤ 0 is not shown, g is not shown where the online eigenvalues are zero."
    )
    whole = tuple(replace(one, value=np.ones(4)) for one in series)
    assert roles.draw([replace(about, series=whole)]).get_supxlabel() == ""
