"""The figure of a filter before any training."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from rdm_solo.plots import style
from rdm_solo.theory.filter_effect import Preview, describe


@style.styled
def draw_filter(effect: Preview, note: str = "") -> Figure:
    """Draw a filter's function, and the equivalent online filter on the spectrum."""
    figure, (function, curve) = style.figure(2)
    name = "h"
    color = style.TARGET["color"]
    if effect.branch == "online":
        name = "g"
        color = style.ONLINE["color"]
    _draw(function, effect.sigma, effect.gain, color)
    function.set(xlabel=r"singular value $\sigma$", ylabel=rf"${name}(\sigma)$")
    style.panel_title(function, f"{effect.branch} filter: {describe(effect.own_kind)}")
    _draw(curve, effect.lam_z, effect.curve, style.BLACK)
    curve.set(xlabel=r"$\lambda_z$", ylabel=r"$g=\sqrt{\lambda_p/\lambda_z}$")
    style.panel_title(curve, f"as an online filter: {describe(effect.online_kind)}")
    return style.finish(figure, effect.name, note)


def _draw(axes: Axes, x: Tensor, y: Tensor, color: str) -> None:
    look = style.look("", color, marker="o", markersize=3)
    style.draw_line(axes, x.numpy(), y.numpy(), look)
    axes.set_ylim(bottom=min(0, float(y.min())))
    style.log_axis(axes.xaxis)
