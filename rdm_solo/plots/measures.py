"""Pictures of the field's other measures of rank, over training."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rdm_solo.messages import UserError
from rdm_solo.plots import style
from rdm_solo.plots.curves import blocks, looks, note, share_limits
from rdm_solo.plots.epochs import over_epochs
from rdm_solo.runs.columns import COLUMNS
from rdm_solo.runs.folder import Run
from rdm_solo.runs.groups import groups

MEASURES = (
    *("rankme/target", "lidar/target", "stable_rank/target", "participation_ratio/target"),
    *("nesum/target", "alpha_req/target", "alpha_req_r2/target", "uniformity/target"),
    *("positive_distance/target", "epps_pulley/projection", "mean_share/target"),
)


@style.styled
def measures(runs: Sequence[Run]) -> Figure:
    """RankMe, LiDAR and the other measures over training, a panel for each.

    With more settings than a panel may have, each block of settings has its panels, and its key
    behind the last of them.
    """
    everything = groups(runs)
    shown = [name for name in MEASURES if any(group.last(name) for group in everything)]
    if not shown:
        raise UserError("No run has RankMe, LiDAR or another of these measures in metrics.csv.")
    look, parts = looks(everything), blocks(everything)
    keyed = len(parts) > 1
    across = 4
    cells = -(-(len(shown) + 1) // across) * across if keyed else len(shown)
    made, panels = style.figure(cells * len(parts), columns=across, panel=(2.7, 2.5))
    of: dict[str, list[Axes]] = {name: [] for name in shown}
    for number, block in enumerate(parts):
        own = panels[number * cells : (number + 1) * cells]
        for name, axes in zip(shown, own):
            over_epochs(axes, [(group, name, look[group.label]) for group in block])
            style.panel_title(axes, COLUMNS[name].words)
            axes.set_ylabel("")
            of[name].append(axes)
        if keyed:
            style.key_beside(own[len(shown)], own[0])
            for axes in own[len(shown) + 1 :]:
                axes.remove()
    for same in of.values():
        share_limits(same)
    lacking = [run for run in runs if not any(run.last_measured(name) for name in shown)]
    words = note(everything, "these measures", lacking)
    return style.finish(made, note=words, key=not keyed)
