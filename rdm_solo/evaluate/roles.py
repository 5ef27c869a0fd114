r"""The role of asymmetric designs (the paper's Figure 5), from a run's checkpoint, untrained.

``python -m rdm_solo.roles RUN_FOLDER...``

A run's last model gets its training views again, and the effect of the design on one branch is
measured:

* **BYOL, SimSiam**: the filter of the ideal predictor, :math:`\omega_i = \lambda^+_i/\lambda^z_i`
  (Theorem 2), by sorted eigenvalues as the paper has it and along the target's eigenvectors; beside
  it the filter that the run has, :math:`g = \sqrt{\lambda^p_i/\lambda^z_i}`. The paper's caption
  calls ω monotonically decreasing and its text a low-pass filter. Both hold where the horizontal
  axis is the index of eigenvalues that descend; over λ, which is the axis here, low-pass is rising.
* **SwAV**: the target filter :math:`h = \sqrt{\lambda^z_i/\lambda^p_i}` over the online eigenvalue
  for 0, 1, 2, 3 Sinkhorn iterations. With 0, each row of the target is the softmax of
  logits/ε: :func:`~rdm_solo.evaluate.role_curves.sinkhorn` without an iteration. Where ε is below
  the online temperature this sharpens by itself; so there is a second group of curves with ε at
  the online temperature, where 0 iterations would be the online branch and what is seen is the
  iterations' own. (A run with ``sk_iters: 0`` trains on solo-learn's exponential over its total,
  whose rows differ in sum.)
* **DINO**: h for targets with and without centring, at several temperatures. At the online
  temperature there is no sharpening: centring alone, or none of both. The centre is the
  checkpoint's; a run without centring has none, and the rows' mean takes its place.

A target filter that is high-pass falls with λ: monotonicity near -1, a negative ``slope``, and an
effective rank above the online branch's (Theorem 3).
"""

import argparse
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from rdm_solo import cli, runs
from rdm_solo.evaluate import finished_run, typed_options
from rdm_solo.evaluate.role_curves import MEASURES
from rdm_solo.messages import UserError, check_choice, check_whole
from rdm_solo.methods.descriptions import METHODS
from rdm_solo.plots.roles import draw
from rdm_solo.runs import checkpoints, known_parts, roles_file
from rdm_solo.runs.files import write_whole
from rdm_solo.runs.roles_file import Roles

# How words of the command line begin that are options of the runs, and no folders.
TYPED = tuple(f"{section}." for section in known_parts.SECTIONS)


def measure(
    folder: Path,
    rows: int = 4096,
    device: str = "cpu",
    typed: Mapping[str, Any] | None = None,
    keep: bool = True,
) -> Roles:
    """The curves of the run in that folder, from ``roles.json`` where that is of its checkpoint.

    ``keep=False`` writes no such file.

    ``rows`` view rows go through the model, rounded up to whole batches of the run's size. Take
    several times k: of fewer, the smallest eigenvalues are underestimated. ValueError, in one
    sentence, for a run that has no such curves, no checkpoint, or whose data are not there.

    The passes apart, a core spends 7 s on the eigenvalues of each curve at k = 4096, 3 s at 3000.
    """
    check_whole("rows", rows, 2)
    run = runs.load(folder)
    if run.described.asymmetry not in MEASURES:
        raise UserError(
            f"{folder} has no asymmetric design: {run.label} is none of "
            f"{', '.join(m.label for m in METHODS.values() if m.asymmetry in MEASURES)}."
        )
    state = checkpoints.found(folder)[0].stat()
    key: dict[str, Any] = {
        "checkpoint": [state.st_mtime_ns, state.st_size],
        "rows": rows,
        "seed": run.seed,
    }
    if typed:
        key["typed"] = dict(typed)
    known = roles_file.read(folder, key)
    if known is not None:
        return known
    finished = finished_run.load(run, device, typed)
    with torch.no_grad():
        curves = MEASURES[run.described.asymmetry](finished, rows)
    found = Roles(
        folder=folder,
        method=run.method,
        label=run.label,
        seed=run.seed,
        batch=finished.loader.batch_size,
        epoch=finished.epoch + 1,
        **curves._asdict(),
    )
    if keep:
        roles_file.write(found, key)
    return found


def table(roles: Roles) -> str:
    """The curves' numbers as text."""
    other = "target" if roles.branch == "online" else "online"
    width = max(len(s.name) for s in roles.series) + 2
    lines = [
        f"{roles.label}, seed {roles.seed}, epoch {roles.epoch}, {roles.rows} rows in batches "
        f"of {roles.batch}; erank of the {other} branch {roles.erank:.3f}",
        f"{'':{width}}{'monotonicity':>13}{'slope':>9}{'erank':>9}",
    ]
    for s in roles.series:
        mark = "  <- the run's own" if s.name == roles.own and roles.branch == "target" else ""
        numbers = f"{s.monotonicity:>13.3f}{s.slope:>9.3f}{s.erank:>9.3f}"
        lines.append(f"{s.name:{width}}{numbers}{mark}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(
        "python -m rdm_solo.roles",
        description="The role of asymmetric designs (the paper's Figure 5), from checkpoints.",
    )
    parser.add_argument(
        "folders",
        nargs="+",
        metavar="FOLDER",
        help="folders of runs or of sweeps; SECTION.KEY=VALUE, such as dataset.root=..., replaces "
        "a value of their configs; a function of your own must be given this way, because a folder "
        "may not name it",
    )
    parser.add_argument(
        "--rows", type=int, default=4096, help="views that go through each model (default: 4096)"
    )
    parser.add_argument("--device", default="cpu", help="auto, cpu, cuda or gpu (default: cpu)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("roles.png"),
        help="file for the picture, a .png, .pdf or .svg (default: roles.png)",
    )
    cli.say_anything()
    given = parser.parse_intermixed_args(argv)
    found = []
    with cli.errors_as_sentences():
        check_choice("the ending of --out", given.out.suffix, (".png", ".pdf", ".svg"))
        typed_words = [w for w in given.folders if "=" in w and w.lstrip("+").startswith(TYPED)]
        typed = typed_options.parsed(typed_words)
        folders = [Path(word) for word in given.folders if word not in typed_words]
        if not folders:
            raise UserError("give the folder of a run, too.")
        for run in runs.find(folders):
            try:
                found.append(measure(run.folder, given.rows, given.device, typed))
                print(table(found[-1]))
                if run.diverged:
                    print(f"the run diverged in epoch {run.diverged}, after this checkpoint")
                print()
            except ValueError as error:
                print(f"left out: {error}")
        if not found:
            raise UserError("none of these runs has curves to draw.")
        cli.make_folder(given.out.parent, "--out FILE")
        options = {"dpi": 150, "format": given.out.suffix[1:]}
        write_whole(given.out, functools.partial(draw(found).savefig, **options))
        print(f"the picture is {given.out}")
