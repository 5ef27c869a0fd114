"""The report's page: whole, the same as the golden file, and safe with hostile folders."""

import base64
import re
import shutil
from functools import partial
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from support.report_pages import run, write

import rdm_solo
from rdm_solo import plots, report
from rdm_solo.report import entry, figures, tables
from rdm_solo.report.page import page, typeset
from rdm_solo.runs import columns, ownership
from rdm_solo.runs.groups import by_setting

HOSTILE = "<script>alert(1)</script> & \"'"
GOLDEN = Path(__file__).with_name("page.txt")
VOID = {"meta", "img", "br", "link"}
BEGINS = {"h1": "# ", "h2": "\n## ", "h3": "### ", "li": "- ", "tr": "", "caption": "\n", "p": ""}
BEGINS |= {"dt": "\n", "strong": "", "small": "", "title": "", "footer": "\n"}


class Page(HTMLParser):
    """A strict reader: elements are balanced, no attribute is there twice."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.lines: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert len(dict(attrs)) == len(attrs), "an attribute twice"
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag in BEGINS:
            self.lines.append(BEGINS[tag])
        elif tag == "img":
            self.lines.append(f"[{dict(attrs)['alt']}]")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag
        if tag in ("td", "th") and self.lines:
            self.lines[-1] += " | "

    def handle_data(self, data):
        if self.open and self.open[-1] != "style" and data.strip():
            self.lines[-1] += re.sub(r"\s+", " ", data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.seen if name == tag]

    @property
    def text(self) -> str:
        return "\n".join(line.rstrip(" |") for line in self.lines) + "\n"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """Return the page of a small sweep with a symmetric method."""
    root = tmp_path_factory.mktemp("pages") / "sweep"
    for p, seed in ((-0.5, 0), (-0.5, 1), (-1.0, 0)):
        write(root / f"{seed}_p={p}", p, seed)
    write(root / "vanilla", None, 0, method={"name": "vanilla"}, filter={"name": "none"})
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
    ids = [attributes["id"] for _, attributes in parsed.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    levels = [int(tag[1]) for tag, _ in parsed.seen if tag in ("h1", "h2", "h3")]
    assert levels.count(1) == 1
    assert all(b - a <= 1 for a, b in pairwise(levels)), "no level is left out"
    assert not parsed.all("script")
    assert not parsed.all("link")
    for link in parsed.all("a"):
        target = link["href"]
        assert target[1:] in ids if target.startswith("#") else (sweep.parent / target).is_file()
    images = parsed.all("img")
    assert len(images) == len(list(sweep.parent.glob("*.png"))) > 5
    for image in images:
        kind, _, data = image["src"].partition(",")
        assert kind == "data:image/png;base64"
        assert base64.b64decode(data).startswith(b"\x89PNG")
        assert image["alt"]
    assert "url(" not in html[html.index("<style>") : html.index("</style>")]


def test_each_number_stands_once_on_the_open_page(tmp_path):
    more = {"val/knn_acc1": [51.2, 62.3, 73.4], "filter/monotonicity_directional": [0.5, 0.6, 0.77]}
    write(tmp_path / "run", -0.5, 0, more_columns=more)
    html = report.write([tmp_path / "run"]).read_text().partition("</h1>")[2]
    text = re.sub(r"(?s)<figcaption>.*?</figcaption>|<[^>]*>", "", html.partition("<details>")[0])
    numbers = re.findall(r"\d+\.\d+", text)
    assert len(numbers) == len(set(numbers)) > 8


def test_names_are_text_and_what_is_missing_is_said(tmp_path, monkeypatch):
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
    monkeypatch.setattr(plots, "save", partial(plots.save, formats=("png",)))
    entry.main([str(root), "--out", str(root / "out")])
    html = (root / "out" / entry.NAME).read_text(encoding="utf-8")
    parsed = Page(html)
    assert HOSTILE not in html
    assert HOSTILE in parsed.text
    assert not parsed.all("script")
    assert "<i>&_p=x^2" in parsed.text, "a path is letter for letter"
    for words in (
        *("1 of 3 epochs", "epoch_0001.npz cannot be read", "no spectra", "config.yaml"),
        *("erank/gap was never measured", "no accuracy", "all rows hold NaN: <b>diverged</b>"),
        *("of_tomorrow", "rdm-solo train -m method=simsiam p=-0.5 'dataset.root=a b'"),
    ):
        assert words in parsed.text, words


def test_a_run_without_an_epoch_has_a_page_and_what_is_no_run_is_refused(tmp_path, capsys):
    write(tmp_path / "run", -0.5, 0, epochs=0)
    entry.main([f"run={tmp_path / 'run'}"])
    assert capsys.readouterr().out.startswith("left out: SimSiam, target filter σ^-0.5, seed 0 (")
    parsed = Page((tmp_path / "run" / "report" / entry.NAME).read_text())
    assert "No run has finished an epoch." in parsed.text
    assert not parsed.all("table")
    (tmp_path / "file").write_text("")
    for arguments, words in (
        ([str(tmp_path / "nowhere")], "is not a folder"),
        ([str(tmp_path / "run" / ".hydra")], "holds no run"),
        ([str(tmp_path / "run"), "--out", str(tmp_path / "file" / "out")], "--out FOLDER"),
    ):
        with pytest.raises(SystemExit) as left:
            entry.main(arguments)
        assert left.value.code == 2
        error = capsys.readouterr().err
        assert words in error
        assert error.count("\n") == 1


def test_a_figure_that_fails_does_not_cost_the_page(tmp_path, monkeypatch):
    def fail(drawn, everything):
        raise RuntimeError("of a library")

    failing = plots.Plot(fail, "A title", "", "nothing")
    monkeypatch.setattr(figures, "PLOTS", (failing, plots.losses, figures.figure5))
    pictures, failed = figures.draw(by_setting([run(folder=tmp_path)]), tmp_path)
    assert [picture.plot.name for picture in pictures] == ["losses"]
    assert failed == ["A title: RuntimeError: of a library"]
    _, failed = figures.draw(by_setting([run(folder=tmp_path)]), tmp_path, slow=True)
    assert failed[1].startswith("The role of asymmetric designs: needs a run with")


def test_figure_5_draws_a_run_of_each_design(tmp_path, monkeypatch):
    figure5 = pytest.importorskip("rdm_solo.evaluate.figure5")
    lam = np.array([0.1, 0.01, 0.001, 0.0001])
    values = {"g": [1, 0.5, 0, 0], "omega": [0.9, 0.5, -0.1, np.nan]}

    def measure(run):
        curves = [figure5.Curve(n, "", lam, np.array(v), 0.3, n == "g") for n, v in values.items()]
        return figure5.Figure5(run.label, "online", tuple(curves))

    monkeypatch.setattr(figure5, "measure", measure)
    methods = ("simsiam", "simsiam", "byol", "swav", "vanilla")
    filters = ("identity", "learnable", "learnable", "none", "none")
    runs = [run(None, method=m, filter=f, folder=tmp_path / m) for m, f in zip(methods, filters)]
    for one in runs:
        (one.folder / "checkpoints").mkdir(parents=True, exist_ok=True)
        (one.folder / "checkpoints" / "last.ckpt").touch()
    without_checkpoint = run(None, method="dino", folder=tmp_path)
    figure = figures.figure5([*runs, without_checkpoint])
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["SimSiam, identity", "SimSiam", "BYOL", "SwAV"], "every setting, in order"
    assert {len(line.get_xdata()) for line in figure.axes[1].lines} == {2}, "values above 0"


def test_means_leave_out_what_broke_off():
    behind = run(seed=2, epochs=1, erank__target=[99.0])
    whole, both = (tables.overview(by_setting([run(), *more])) for more in ([], [behind]))
    assert whole.rows == both.rows
    assert "seed 2 (1 of 3 epochs)" in " ".join(both.notes)
    assert len(tables.all_runs(by_setting([run(), behind])).rows) == 2
    alone, printed = (entry.verdict_table(by_setting([run(), *more])) for more in ([], [behind]))
    assert printed.startswith(alone)
    assert "not counted: SimSiam, target filter σ^-0.5, seed 2 (1 of 3 epochs)" in printed


def test_repeated_seeds_and_values_of_an_earlier_epoch_are_named():
    assert "2 times" in " ".join(entry.incomplete([run(), run()]))
    assert "times" not in " ".join(entry.incomplete([run(), run(seed=1)]))
    seeds = [run(seed=s, val__knn_acc1=[90.0, 91.0, np.nan]) for s in (0, 1)]
    assert tables.overview(by_setting(seeds)).rows[0][3] == "91.0 ± 0.0 (epoch 2)"
    lacks = run(erank__gap=[1, 1, np.nan])
    assert "erank/gap was last measured in epoch 2" in entry.incomplete([lacks])[0]


def test_warnings_during_training_are_listed():
    warned = run(seed=3)
    warned.summary["warnings"] = [{"kind": "negative gap", "epoch": 3, "text": "gap in σ^0.5"}]
    text = Page(page(by_setting([run(), warned]))).text
    assert "seed 3, epoch 3: gap in σ0.5" in text


def test_every_measure_is_explained():
    meanings = {column.name: column.meaning for column in columns.measures()}
    values = {name.replace("/", "__"): [1.0, 2.0, 3.0] for name in meanings}
    table = tables.measures(by_setting([run(p, **values) for p in (-0.5, -0.3)]))
    assert [row[1] for row in table.rows] == list(meanings.values())
    assert {float(cell) for row in table.rows for cell in row[2:]} == {3.0}


def test_formulas_are_set_and_escaped():
    assert typeset("σ^(-0.1…-0.5, linear) & λ_p") == (
        "σ<sup>(-0.1…-0.5, linear)</sup> &amp; λ<sub>p</sub>"
    )
    assert str(typeset("<b>")) == "&lt;b&gt;"
