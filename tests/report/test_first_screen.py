"""What the page says first, in which order it goes on, and that it fits on a phone."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from support.report_pages import Page, run, write

from rdm_solo import plots, report
from rdm_solo.plots.measures import MEASURES
from rdm_solo.report import answers, captions, measured, ranking, tables
from rdm_solo.report import figures as report_figures
from rdm_solo.report.page import page
from rdm_solo.report.vectors import VARIABLES, drawn
from rdm_solo.runs.columns import LINEAR
from rdm_solo.runs.groups import groups


def seeds(p: float | None, knn: list[float], **changed):
    """Runs of one setting, a seed for each last kNN accuracy."""
    return [run(p, seed=s, val__knn_acc1=[50, 60, x], **changed) for s, x in enumerate(knn)]


def best(*runs_):
    return {one.question: one for one in ranking.best(groups(list(runs_)))}


MOST_ACCURATE = "Which is the most accurate?"


def test_the_most_accurate_is_named_with_spread_and_seeds():
    found = best(*seeds(-0.5, [90, 91, 92]), *seeds(-1.0, [80, 81, 82]))[MOST_ACCURATE]
    assert found.label == "SimSiam, h(σ) = σ^-0.5"
    assert found.value == "kNN 91.0 ± 1.0 % (n = 3, epoch 3)"
    assert found.others == (
        "No other is within one standard deviation of it; next SimSiam, h(σ) = σ^-1 (81.0 ± 1.0)."
    )


@pytest.mark.parametrize(
    ("other", "tied"),
    [([89.9, 90.0, 90.1], True), ([88, 89.9, 91.8], True), ([89.8, 89.9, 90.0], False)],
)
def test_what_is_within_the_larger_standard_deviation_is_no_worse(other, tied):
    said = best(*seeds(-0.5, [90, 91, 92]), *seeds(-1.0, other))[MOST_ACCURATE].others
    assert said.startswith("Within one standard deviation of it: " if tied else "No other")


def test_of_one_seed_no_spread_is_made_up():
    found = best(*seeds(-0.5, [90]), *seeds(-1.0, [89.9]))[MOST_ACCURATE]
    assert found.value == "kNN 90.0 % (n = 1, epoch 3)"
    assert found.others == (
        "One seed each, so the spread is not known; next SimSiam, h(σ) = σ^-1 (89.9)."
    )
    three = [*seeds(-0.5, [90]), *seeds(-1.0, [89, 89.9, 90.7])]
    assert best(*three)[MOST_ACCURATE].others.startswith("Within one standard deviation")


def test_what_collapsed_or_diverged_is_not_ranked_and_named():
    fallen = seeds(-1.0, [99, 99], feature__spread=[0.9, 1e-3, 1e-3])
    gone = [replace(one, diverged=4) for one in seeds(-0.7, [98, 98])]
    everything = [*seeds(-0.5, [90, 91]), *fallen, *gone]
    found = best(*everything)
    assert {one.label for one in found.values()} == {"SimSiam, h(σ) = σ^-0.5"}
    called = answers.roll_call(groups(everything))
    assert called.answer == "1 of 3 settings without a collapsed or diverged run"
    assert called.numbers == [
        "not ranked: SimSiam, h(σ) = σ^-1, collapsed: completely",
        "not ranked: SimSiam, h(σ) = σ^-0.7, diverged in epoch 4",
    ]


def test_a_setting_that_lost_a_seed_is_ranked_and_named():
    one_fell = [*seeds(-1.0, [99]), *seeds(-1.0, [0, 99], feature__spread=[0.9, 1e-3, 1e-3])[1:]]
    called = answers.roll_call(groups([*seeds(-0.5, [90]), *one_fell]))
    assert called.good is None
    assert called.numbers == [
        "some runs failed: SimSiam, h(σ) = σ^-1, alive (1 of 2); collapsed: completely (1 of 2)"
    ]
    assert best(*seeds(-0.5, [90]), *one_fell)[MOST_ACCURATE].label == "SimSiam, h(σ) = σ^-1"


def test_where_nothing_is_left_nothing_is_best():
    assert best(*seeds(-1.0, [99], feature__spread=[0.9, 1e-3, 1e-3])) == {}
    without = [run(p, val__acc1=[np.nan] * 3) for p in (-0.5, -1)]
    assert MOST_ACCURATE not in best(*without)
    assert "Which has the highest rank?" in best(*without)


def test_data_sets_are_ranked_apart():
    other = seeds(-0.5, [20])
    for one in other:
        one.config.dataset.name = "cifar10"
    found = best(*seeds(-0.5, [90]), *other)
    assert "Which is the most accurate on cifar10?" in found
    assert found["Which is the most accurate on digits?"].others.startswith("There is no other")


def test_linear_accuracy_comes_before_knn_where_as_many_have_it(tmp_path):
    evaluated = seeds(-0.5, [90])
    record = {"seed": 0, "top1": 70.0, "top5": 99.0, "protocol": {}}
    evaluated[0] = replace(evaluated[0], linear={"protocol": [record]})
    assert ranking.accuracy(groups(evaluated)) == LINEAR
    assert ranking.accuracy(groups([*evaluated, *seeds(-1.0, [80])])).name == "val/knn_acc1"


def test_a_gap_that_the_filter_makes_is_no_merit():
    gap = best(*seeds(-0.5, [90]), *seeds(-1.0, [80]))["Which has the widest gap?"]
    assert "whatever was learned" in gap.others
    learned = best(*seeds(None, [90]), *seeds(0.5, [80]))["Which has the widest gap?"]
    assert learned.label == "SimSiam"
    assert "whatever was learned" not in learned.others


def test_one_setting_is_alive_with_the_numbers_that_say_so():
    (group,) = groups(seeds(-0.5, [90]))
    found = answers.alive(group)
    assert (found.answer, found.good) == ("alive", True)
    said = "\n".join(found.numbers)
    assert "3 of 3 epochs" in said
    assert "variance 90.0 % of the second moment (collapse: below 10 %)" in said
    assert re.search(r"effective rank around the mean [\d.]+ of 8 \(collapse: below 2.2\)", said)
    assert re.search(r"gap [\d.]+: target [\d.]+, online [\d.]+", said)


@pytest.mark.parametrize(
    ("changed", "answer", "good"),
    [
        ({"feature__spread": [0.9, 1e-3, 1e-3]}, "collapsed: completely", False),
        ({"erank__centred": [5, 1.1, 1.1]}, "collapsed: into few directions", False),
        (
            {"feature__spread": [0.9, 0.15, 0.15]},
            "not decided: 85 % of the outputs' second moment is their mean",
            None,
        ),
        ({"epochs": 1}, "too early to say", None),
        (
            {"erank__centred": [np.nan] * 3},
            "no complete collapse; directions were not measured",
            None,
        ),
    ],
)
def test_what_is_said_of_a_run_that_is_not_well(changed, answer, good):
    found = answers.alive(groups([run(**changed)])[0])
    assert (found.answer, found.good) == (answer, good)


def test_a_run_that_has_not_ended_says_how_far_it_came():
    (group,) = groups([run(epochs=2)])
    assert answers.progress(group) == "2 of 3 epochs, still training or broken off"
    stopped = replace(run(epochs=2), summary={"stopped": "SIGTERM"})
    assert answers.progress(groups([stopped])[0]) == "2 of 3 epochs, stopped"


def test_how_good_it_is_with_its_epoch_its_best_one_and_the_seeds():
    found = answers.good(groups([run(val__knn_acc1=[50, 95, 90])])[0])
    assert found.answer == "kNN 90.0 % in epoch 3"
    assert found.numbers[0] == "best 95.0 % in epoch 2"
    several = answers.good(groups(seeds(-0.5, [90, 92, 94]))[0])
    assert several.answer == "kNN 92.0 ± 2.0 % in epoch 3"
    assert several.numbers[0] == "n = 3 seeds, 90.0 to 94.0"
    assert answers.good(groups([run(val__acc1=[np.nan] * 3)])[0]).answer == "not measured"


def test_sections_are_numbered_in_one_sequence_that_the_contents_have(written):
    text = written.read_text()
    heads = re.findall(r'<h2 id="\w+-title">(\d+)\. (.*?)</h2>', text)
    assert [int(number) for number, _ in heads] == list(range(1, len(heads) + 1))
    contents = re.findall(r"<li><a href=\"#\w+\">(.*?)</a></li>", text)
    assert contents == [name for _, name in heads]
    assert [name for _, name in heads][:4] == [
        *("Is it alive?", "How good is it?", "Which setting is best?"),
        "What do the branches&#39; spectra look like?",
    ]
    titles = re.findall(r"<h3.*?</h3>", text)
    assert not [title for title in titles if re.search(r">\d|Figure \d", title)]
    assert "Of the paper: Figures 1 and 7." in text


def test_accuracy_against_p_stands_before_every_section(written):
    text = written.read_text()
    assert 0 < text.index('id="sweep"') < text.index('id="alive"')


def test_settings_without_an_exponent_are_compared_before_every_section(tmp_path):
    for method in ("byol", "simsiam"):
        chosen = {"method": {"name": method}, "filter": {"name": "learnable"}}
        write(tmp_path / method, None, 0, **chosen)
    text = _page(tmp_path)
    assert 0 < text.index('id="comparison"') < text.index('id="alive"')


def test_one_setting_has_its_curves_there(tmp_path):
    write(tmp_path / "run", -0.5, 0)
    text = _page(tmp_path)
    assert 0 < text.index('id="overview"') < text.index('id="alive"')
    assert "Which setting is best?" not in text


def test_a_method_that_this_version_does_not_know_has_a_page(tmp_path):
    chosen = {"method": {"name": "of_tomorrow"}, "filter": {"name": "none"}}
    write(tmp_path / "run", None, 0, **chosen)
    text = _page(tmp_path, checkpoints=True)
    assert "of_tomorrow" in text
    for name in ("overview", "effective_rank", "spectra", "alignment"):
        assert f'id="{name}"' in text


def test_every_other_measure_is_explained_and_shown():
    assert list(captions.SAYS) == list(MEASURES)
    values = {name.replace("/", "__"): [1.0, 2.0, 3.0] for name in MEASURES}
    (explained,) = tables.measures(groups([run(**values)]))
    assert [row[1] for row in explained.rows][:3] == ["3.00", "3.00", "3.00"]
    assert {row[2] for row in explained.rows} == set(captions.SAYS.values())
    assert "docs/measures.md" in explained.notes[0]
    many = [run(p, **values) for p in (-1, -0.7, -0.5, -0.3)]
    assert len(tables.measures(groups(many))[1].rows) == 4
    assert tables.measures(groups([run()])) == []


def test_too_few_rows_are_warned_of():
    few = run()
    assert measured.few_rows(few) is None
    few.spectra["rows"] = np.full(3, 8)
    assert measured.few_rows(few).startswith("N=8 rows are no more than k=8 dimensions")
    few.spectra["sampled"] = np.array([False, False, True])
    few.spectra["dimensions"] = np.full(3, 99)
    assert measured.few_rows(few).startswith("spectra at k=99 are those of N=8 sampled rows")
    values = {name.replace("/", "__"): [1.0, 2.0, 3.0] for name in MEASURES}
    warned = run(**values)
    warned.spectra["rows"] = np.full(3, 8)
    assert "N=8 rows" in page("a title", groups([warned]))


def test_figures_take_their_colours_from_the_page():
    made = plots.effective_rank([run()])
    found = drawn(made, "rank")
    assert "#" not in re.sub(r"url\(#[^)]*\)|href=\"#[^\"]*\"", "", found.markup)
    style = page("a title", [])
    for variable in set(VARIABLES.values()):
        assert style.count(f"--{variable}:") == 3, "light, dark and paper"
    assert len([piece for piece in found.pieces if piece.panel]) == 1
    assert made.get_supxlabel() == "" or made.texts[0].get_visible()


def _page(folder, checkpoints: bool = False) -> str:
    path = report.write([folder], folder / "out", checkpoints)
    found = Page(path.read_text())
    assert found.text
    return path.read_text()


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The page of a small sweep."""
    root = tmp_path_factory.mktemp("sweep")
    for p in (-0.5, -1.0):
        for seed in (0, 1):
            write(root / f"{seed}_p={p}", p, seed)
    with pytest.MonkeyPatch.context() as patch:
        # Iterating Theorem 4 takes as long as all the rest, and has tests of its own.
        patch.setattr(report_figures, "PREDICTED", 0)
        return report.write([root], root / "out", checkpoints=False)


# Reads the page's width in a window as wide as a phone, which a browser without a head cannot be.
FRAME = """<iframe id="phone" src="{}" style="width:390px;height:844px;border:0"></iframe>
<script>
onload = () => {{
  const inside = document.getElementById("phone").contentDocument;
  const cut = [...inside.querySelectorAll(".pieces svg, .answers > div, h1, figcaption")]
    .filter(one => one.getBoundingClientRect().right > 390).length;
  document.body.textContent = `width ${{inside.documentElement.scrollWidth}} cut ${{cut}}`;
}};
</script>"""


def test_on_a_phone_nothing_is_wider_than_the_screen(tmp_path, monkeypatch):
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium to measure the page with")
    monkeypatch.setattr(report_figures, "PREDICTED", 0)
    for i, name in enumerate(
        ("short", "a_filter_whose_name_is_longer_than_a_phone_is_wide_by_far")
    ):
        chosen = {"filter": {"name": name, "branch": "target", "function": "pow"}}
        write(tmp_path / "runs" / str(i), -0.5, 0, **chosen)
    written = report.write([tmp_path / "runs"], tmp_path / "out", checkpoints=False)
    (tmp_path / "frame.html").write_text(FRAME.format(written.as_uri()))
    command = [browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--dump-dom"]
    command += ["--allow-file-access-from-files", f"--user-data-dir={tmp_path / 'browser'}"]
    command += ["--virtual-time-budget=20000", (tmp_path / "frame.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "width 390 cut 0" in done.stdout, done.stderr[-500:]
