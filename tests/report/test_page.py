"""The report's page: whole, the same as the golden file, and safe with hostile folders."""

import base64
import functools
import re
import shutil
import webbrowser
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from support.report_pages import run, settings, write

import rdm_solo
from rdm_solo import plots, report
from rdm_solo.plots import style
from rdm_solo.report import entry, figures
from rdm_solo.report.page import page
from rdm_solo.runs import columns, ownership
from rdm_solo.runs.groups import by_setting

HOSTILE = "<script>alert(1)</script> & \"'"
GOLDEN = Path(__file__).with_name("page.txt")
VOID = {"meta", "img", "br", "link", "source"}
# Where a line of the page's text begins, and with what.
BEGINS = {
    "title": "",
    "h1": "# ",
    "h2": "\n## ",
    "h3": "### ",
    "p": "",
    "li": "- ",
    "dt": "\n",
    "strong": "",
    "small": "",
    "caption": "\n",
    "tr": "",
    "footer": "\n",
}


class Page(HTMLParser):
    """A strict reader: elements are balanced, no attribute is there twice."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.lines: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        assert len(attributes) == len(attrs), "an attribute twice"
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if tag in BEGINS:
            self.lines.append(BEGINS[tag])
        elif tag == "img":
            self.lines.append(f"[{attributes['alt']}]")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th") and self.lines:
            self.lines[-1] += " | "

    def handle_data(self, data):
        if self.open and self.open[-1] != "style" and data.strip():
            self.lines[-1] += re.sub(r"\s+", " ", data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip(" |") for line in self.lines) + "\n"


def page_text(*members) -> str:
    return Page(page(settings(*members))).text


def blank(plot: plots.Plot) -> plots.Plot:
    """Return a figure with the texts of another one and an empty panel, which is drawn at once."""

    def draw(groups, looks):
        figure, _ = style.figure(1)
        return figure

    return replace(plot, draw=functools.update_wrapper(draw, plot.draw))


@pytest.fixture(autouse=True, scope="module")
def _no_pdf():
    """Save the figures as PNG files alone, which saves most of the time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "save", functools.partial(plots.save, formats=("png",)))
        yield


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """Return the page of a small sweep with a symmetric method."""
    root = tmp_path_factory.mktemp("pages") / "sweep"
    for p, seed in ((-0.5, 0), (-0.5, 1), (-1.0, 0)):
        write(root / f"{seed}_p={p}", p, seed)
    names = {"method": {"name": "vanilla"}, "filter": {"name": "none"}}
    write(root / "vanilla", None, 0, **names)
    drawn = plots.effective_rank
    blanks = [plot if plot is drawn else blank(plot) for plot in plots.PLOTS]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "PLOTS", (*blanks, figures.figure5))
        return report.write([root], root / "out")


def test_the_page_is_the_golden_one(sweep, tmp_path):
    """The golden file is the page's text: copy the new one over it where a change is wanted."""
    text = Page(sweep.read_text()).text.replace(rdm_solo.__version__, "VERSION")
    text = re.sub(r"\d{4}-\d\d-\d\d", "DATE", text)
    (tmp_path / "page.txt").write_text(text)
    assert text == GOLDEN.read_text(), f"new: {tmp_path / 'page.txt'}, old: {GOLDEN}"


def test_the_page_is_whole_and_needs_nothing_else(sweep):
    html = sweep.read_text()
    parsed = Page(html)
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not parsed.all("script")
    assert not parsed.all("link")
    for link in parsed.all("a"):  # whoever has only the page has no other file
        assert link["href"].startswith("#")
        assert link["href"][1:] in ids
    images = parsed.all("img")
    assert len(images) == len(list(sweep.parent.glob("*.png"))) > 5
    for image in images:
        kind, _, data = image["src"].partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data).startswith(b"\x89PNG")
        assert image["alt"]
    (narrow,) = parsed.all("source")  # of the figure of several panels
    assert narrow["srcset"].startswith("data:image/png;base64,")
    assert narrow["media"].startswith("(max-width:")
    assert "url(" not in html[html.index("<style>") : html.index("</style>")]


def test_names_are_text_and_missing_parts_are_listed(tmp_path, monkeypatch):
    root = tmp_path / "runs <b>&"
    write(root / "<i>&_p=x^2", -0.5, 0, dataset=HOSTILE)
    write(root / "tomorrow", None, 0, dataset=HOSTILE, method={"name": "of_tomorrow"})
    write(root / "began", -0.5, 7, epochs=1, dataset=HOSTILE)
    (root / "began" / "spectra" / "epoch_0001.npz").write_bytes(b"PK\x03\x04 half")
    write(root / "off", -0.5, 8, dataset=HOSTILE)
    shutil.rmtree(root / "off" / "spectra")
    (root / "off" / "metrics.csv").write_text("epoch,train/loss,val/acc1\n1,-1,\n2,-2,\n3,-3,\n")
    write(root / "none", -0.5, 9, epochs=0)
    ownership.record_failure(root / "none", "all rows hold NaN: <b>diverged</b>.")
    (root / "other" / ".hydra").mkdir(parents=True)
    (root / "other" / ".hydra" / "config.yaml").write_text("a: [")
    monkeypatch.setattr(figures, "PLOTS", (blank(plots.losses),))
    entry.main([str(root), "--out", str(root / "out")])
    html = (root / "out" / entry.NAME).read_text(encoding="utf-8")
    parsed = Page(html)
    assert HOSTILE not in html
    assert HOSTILE in parsed.text
    assert not parsed.all("script")
    for words in (
        "<i>&_p=x^2",  # a path is letter for letter
        "1 of 3 epochs",
        "epoch_0001.npz cannot be read",
        "no spectra",
        "config.yaml",
        "erank/gap was never measured",
        "all rows hold NaN: <b>diverged</b>",
        "of_tomorrow",
        "rdm-solo train -m method=simsiam p=-0.5 'dataset.root=a b'",
    ):
        assert words in parsed.text, words


@pytest.mark.parametrize("options", [[], ["--open"]])
def test_a_run_without_an_epoch_has_a_page_that_opens_on_request(
    options, tmp_path, monkeypatch, capsys
):
    opened = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    write(tmp_path / "run", -0.5, 0, epochs=0)
    entry.main([f"run={tmp_path / 'run'}", *options])
    path = tmp_path / "run" / "report" / entry.NAME
    assert opened == [path.as_uri()] * len(options)
    output = capsys.readouterr().out
    assert output.startswith("left out: SimSiam, target filter σ^-0.5, seed 0 (")
    assert str(path) in output
    parsed = Page(path.read_text())
    assert "No run has finished an epoch." in parsed.text
    assert not parsed.all("table")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "is not a folder"),
        (["run/.hydra"], "holds no run"),
        (["run", "--out", "run/metrics.csv/out"], "--out FOLDER"),
    ],
)
def test_folders_without_a_run_are_refused(arguments, words, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write(Path("run"), -0.5, 0)
    with pytest.raises(SystemExit) as ending:
        entry.main(arguments)
    assert ending.value.code == 2
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_figure_that_fails_does_not_cost_the_page(tmp_path, monkeypatch):
    def fail(groups, looks):
        raise RuntimeError("of a library")

    failing = plots.Plot(fail, "A title", "", "nothing")
    monkeypatch.setattr(figures, "PLOTS", (failing, blank(plots.losses), figures.figure5))
    groups = by_setting([run(folder=tmp_path)])
    pictures, failures = figures.draw(groups, tmp_path)
    assert [picture.plot.name for picture in pictures] == ["losses"]
    assert failures == ["A title: RuntimeError: of a library"]
    _, failures = figures.draw(groups, tmp_path, slow=True)
    assert failures[1].startswith("The role of asymmetric designs: needs a run with")


def test_means_leave_out_what_broke_off():
    behind = run(seed=2, epochs=1, erank__target=[99.0])
    (alone,) = settings(run())
    (both,) = settings(run(), behind)
    note = f"not counted: {alone.label}, seed 2 (1 of 3 epochs)"
    assert entry.verdict_table([both]) == f"{entry.verdict_table([alone])}\n{note}"
    assert "seed 2 | " in page_text(run(), behind)


def test_the_config_of_a_watched_loop_is_listed():
    members = []
    for lr in (0.1, 0.2):
        member = run(None, method="mine", filter="none")
        member.config.watched = {"config": {"lr": lr, "model": {"width": 8}, "seed": 1}}
        members.append(member)
    text = page_text(*members)
    for lr in (0.1, 0.2):
        assert f"lr={lr}, model.width=8\n" in text


def test_warnings_name_the_setting_of_their_run(tmp_path):
    """Runs of the same seed are told apart by their folders."""
    members = [run(folder=tmp_path / name) for name in ("first", "second")]
    for member in members:
        member.summary["warnings"] = [{"kind": "negative gap", "epoch": 3, "text": "gap in σ^0.5"}]
    text = page_text(*members)
    for name in ("first", "second"):
        assert f"({name}), seed 0, epoch 3: gap in σ0.5" in text


def test_a_card_shows_what_fails_and_what_to_try():
    """Also the card of several settings, and the table that explains the verdicts."""
    healthy = run()
    fallen = run(feature__spread=[0.9, 1e-3, 1e-3])
    warning = {"kind": "complete collapse", "epoch": 3, "text": "", "advice": "Try σ^-1."}
    for member in (healthy, fallen):
        member.summary["warnings"] = [warning]
    for members in ([fallen], [fallen, run(-0.3)]):
        cards, _, rest = page_text(*members).partition("## ")
        for text in (cards, rest):
            assert "spread of the outputs 0.001, below 0.1" in text
        assert "Try σ-1." in cards
    assert "Try σ-1." not in page_text(healthy)


def test_every_measure_is_explained():
    values = {column.name: [1.0, 2.0, 3.0] for column in columns.measures()}
    text = page_text(run(-0.5, **values), run(-0.3, **values))
    for column in columns.measures():
        value = f"{3:.{column.digits}f}"
        assert f"{column.label} | {column.meaning} | {value} | {value}\n" in text
