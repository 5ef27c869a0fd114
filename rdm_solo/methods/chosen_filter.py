"""The filter that a config chooses, and its properties; does not import solo-learn."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.cli.config_files import config_folder
from rdm_solo.filters.functions import SHIPPED as FUNCTIONS
from rdm_solo.filters.functions import formula
from rdm_solo.filters.schedules import as_schedule
from rdm_solo.filters.spectral_filter import SpectralFilter
from rdm_solo.ground.errors import UserError


def exponent(p: Any) -> str:
    """Format an exponent or a schedule of exponents.

    >>> exponent(-0.5), exponent({"schedule": "linear", "start": -0.1, "end": -0.5})
    ('-0.5', '(-0.1…-0.5, linear)')
    >>> exponent({"schedule": "steps", 1: -0.5, 11: 0, 21: -0.5})
    '(-0.5, 0 from epoch 11, -0.5 from epoch 21)'
    """
    if p is None:
        return ""
    if isinstance(p, (int, float)):
        return f"{p:g}"
    if p["schedule"] == "steps":
        (_, first), *later = as_schedule(p).exponents.items()
        words = [f"{first:g}"]
        for epoch, value in later:
            words.append(f"{value:g} from epoch {epoch}")
        return f"({', '.join(words)})"
    return f"({p['start']:g}…{p['end']:g}, {p['schedule']})"


def parameters(group: Any) -> dict[str, Any]:
    """Return the keys of a config's group ``filter`` that are parameters of the function."""
    options = ("name", "branch", "function", "momentum", "solver")
    return {key: group[key] for key in group if key not in options}


@dataclass(frozen=True)
class ChosenFilter:
    """The choice of the config group ``filter``, with its exponent.

    ``branch`` is online, target, or both. ``parameters`` are those of the function, except p.

    ``function`` is a registered name or an import path such as ``torch.sqrt``. It is None if the
    filter is not a function of singular values: a learned predictor, identity, or none.

    >>> ChosenFilter("online_log1p", "online", "torch.asinh").label
    'online_torch.asinh'
    """

    name: str
    branch: str | None = None
    function: str | None = None
    p: Any = None
    momentum: float = 0.0
    solver: str = "auto"
    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_config(cls, cfg: Any) -> "ChosenFilter":
        """Return the filter of a run's config."""
        group = cfg.filter
        p = cfg.get("p")
        if isinstance(p, DictConfig):  # a schedule
            p = OmegaConf.to_container(p)
        branch, function = _shipped(group.name)
        return cls(
            group.name,
            group.get("branch", branch),
            group.get("function", function),
            p,
            group.get("momentum", 0.0),
            group.get("solver", "auto"),
            parameters(group),
        )

    @property
    def absent(self) -> bool:
        """Return whether the config sets no filter, because the method takes none."""
        return self.name == "none"

    @property
    def unchanged(self) -> bool:
        """Return whether the method is unchanged: it keeps its predictor, or takes no filter."""
        return self.absent or self.name == "learnable"

    @property
    def linear(self) -> bool:
        """Return whether it is a learnable linear predictor."""
        return self.name == "linear"

    @property
    def spectral(self) -> bool:
        """Return whether it is a function of singular values."""
        return self.function is not None

    @property
    def on_target(self) -> bool:
        return self.branch == "target"

    @property
    def symmetric(self) -> bool:
        """Return whether it treats both branches alike: no filter, or the same one on both."""
        return self.name == "identity" or self.branch == "both"

    @property
    def power(self) -> bool:
        return self.function == "pow"

    @property
    def logarithmic(self) -> bool:
        return self.function in FUNCTIONS and FUNCTIONS[self.function].logarithmic

    def direction(self, p: float | None) -> int | None:
        """Return 1 if a fixed filter gives the target the higher rank, -1 if the lower one.

        1 is an online low-pass or a target high-pass filter. 0: neither or unknown. None: the
        filter is not fixed.

        >>> ChosenFilter("target_pow", "target", "pow").direction(-0.5)
        1
        """
        if not self.spectral:
            return None
        # With momentum, other batches' singular values decide.
        if self.momentum or self.branch == "both":
            return 0
        slope = 0
        if self.function in FUNCTIONS:
            slope = FUNCTIONS[self.function].slope
        if self.power and p is not None and not self.reverses(p):
            slope = (p > 0) - (p < 0)  # the sign of p
        return -slope if self.on_target else slope

    def reverses(self, p: float | None) -> bool:
        """Return whether σ^(1+p) falls with σ; the weakest direction then becomes the strongest."""
        return self.power and p is not None and p < -1

    @property
    def label(self) -> str:
        """Return the name, or branch and function if a shipped filter's function was replaced."""
        if self.spectral and any(_shipped(self.name)):
            return f"{self.branch}_{self.function}"
        return self.name

    def formula(self, p: str) -> str:
        """Return the formula with this exponent, or "" if the function is not shipped."""
        if self.function is None or not any(_shipped(self.label)):
            return ""
        return formula(self.function, **{**self.parameters, "p": p})

    def text(self, p: str | None = None) -> str:
        """Return the filter in words, with its own exponent or with this one.

        >>> ChosenFilter("target_pow", "target", "pow", p=-0.5).text()
        'target filter σ^-0.5'
        """
        if p is None:
            p = exponent(self.p)
        formula = self.formula(p)  # of a shipped function
        if not formula:
            return f"{self.label}, p = {p}" if p else self.label
        if self.symmetric:
            return f"filter {formula} on both branches"
        return f"{self.branch} filter {formula}"

    def modules(self, epochs: int) -> dict[str, SpectralFilter]:
        """Return the spectral filter of each branch; raise UserError if p would be ignored.

        ``epochs`` is the length of a schedule of p that has none.
        """
        p = self.p
        if self.function is None:
            if p is not None:
                raise UserError(f"p={p} would be ignored: filter={self.name} has no exponent.")
            return {}
        if p is not None:
            p = as_schedule(p, epochs=epochs)
        branches = [str(self.branch)]
        if self.branch == "both":
            branches = ["online", "target"]
        return {
            branch: SpectralFilter(
                branch,
                self.function,
                p,
                self.momentum,
                self.solver,
                check_delay=2,  # calls, so that a step does not wait for the device
                **self.parameters,
            )
            for branch in branches
        }


def shipped_filters() -> dict[str, ChosenFilter]:
    """Return the filters of ``conf/filter`` by name, the method's own predictor first.

    >>> shipped_filters()["target_pow"].p
    -0.5
    """
    paths = sorted((config_folder() / "filter").glob("*.yaml"))
    filters = [ChosenFilter.from_config(OmegaConf.load(path)) for path in paths]
    filters.sort(key=lambda chosen: not chosen.unchanged)
    return {chosen.name: chosen for chosen in filters if not chosen.absent}


def _shipped(name: str) -> tuple[str | None, str | None]:
    """Split a shipped filter's name into branch and function; both are None for other names."""
    branch, _, function = name.partition("_")
    shipped = branch in ("online", "target", "both") and function in FUNCTIONS
    return (branch, function) if shipped else (None, None)
