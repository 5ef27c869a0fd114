"""What a config's group ``filter`` chooses, and what follows from that.

Importing this does not need solo-learn. ``docs/add-a-filter.md`` shows how to add one.
"""

from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.filters.functions import SHIPPED as FUNCTIONS


@dataclass(frozen=True)
class ChosenFilter:
    """What a config's group ``filter`` chooses, with its exponent.

    ``function`` is a registered name or a full name such as ``torch.sqrt``; None where what
    stands in the filter's place is no function: nothing, or what the run learns.

    >>> own = {"name": "online_log1p", "branch": "online", "function": "torch.asinh"}
    >>> ChosenFilter(**own).label
    'online_torch.asinh'
    """

    name: str
    branch: str | None = None
    function: str | None = None
    p: Any = None
    solver: str = "eigh"

    @classmethod
    def of(cls, cfg: Any) -> "ChosenFilter":
        """The choice of a run's config; a config without branch and function has them by name."""
        chosen, p, name = cfg.filter, cfg.get("p"), str(cfg.filter.name)
        branch, function = _named_by(name) or (None, None)
        return cls(
            name,
            chosen.get("branch", branch),
            chosen.get("function", function),
            OmegaConf.to_container(p) if isinstance(p, DictConfig) else p,
            chosen.get("solver", "eigh"),
        )

    @property
    def absent(self) -> bool:
        """The method has no place for one."""
        return self.name == "none"

    @property
    def own(self) -> bool:
        """Nothing of the method is replaced: its predictor is there, or it needs none."""
        return self.name in ("none", "learnable")

    @property
    def linear(self) -> bool:
        """A linear predictor that is learned."""
        return self.name == "linear"

    @property
    def identity(self) -> bool:
        """Nothing stands in the predictor's place."""
        return self.name == "identity"

    @property
    def spectral(self) -> bool:
        """A function of singular values, which nothing learns."""
        return self.function is not None

    @property
    def on_target(self) -> bool:
        return self.branch == "target"

    @property
    def power(self) -> bool:
        """sigma to some power, which has an exponent."""
        return self.function == "pow"

    @property
    def increasing(self) -> bool:
        """A function whose size is known to rise with σ."""
        return self.function in FUNCTIONS and FUNCTIONS[self.function].increasing

    @property
    def logarithmic(self) -> bool:
        return self.function in FUNCTIONS and FUNCTIONS[self.function].logarithmic

    def direction(self, p: float | None) -> int | None:
        """Of a fixed filter as the online branch sees it: 1 low-pass, so that the target's rank is
        the higher one; -1 high-pass, the wrong way; 0 neither or unknown. None without one.

        >>> ChosenFilter("target_pow", "target", "pow").direction(-0.5)
        1
        """
        if not self.spectral:
            return None
        side = -1 if self.on_target else 1
        if self.increasing:
            return side
        if not self.power or p is None or self.reverses(p):
            return 0
        return (side * p > 0) - (side * p < 0)

    def reverses(self, p: float | None) -> bool:
        """Whether σ^(1+p) falls with σ, so that the weakest direction comes out first."""
        return self.power and p is not None and p < -1

    @property
    def label(self) -> str:
        """Its name; where a shipped one got another function, branch and function."""
        replaced = self.spectral and _named_by(self.name) is not None
        return f"{self.branch}_{self.function}" if replaced else self.name

    @property
    def formula(self) -> str:
        """A shipped filter's, with ``{p}`` in the exponent's place; empty for any other."""
        if _named_by(self.label) is None or self.function is None:
            return ""
        return f"{'h' if self.on_target else 'g'}(σ) = {FUNCTIONS[self.function].formula}"


def shipped_filters() -> dict[str, ChosenFilter]:
    """The filters of ``conf/filter`` by name, the method's own predictor first.

    >>> shipped_filters()["target_pow"].p
    -0.5
    """
    from rdm_solo.cli.arguments import config_folder  # which imports Hydra

    found = {}
    for path in sorted((config_folder() / "filter").glob("*.yaml")):
        chosen = ChosenFilter.of(OmegaConf.load(path))
        if not chosen.absent:
            found[chosen.name] = chosen
    return dict(sorted(found.items(), key=lambda item: not item[1].own))


def _named_by(name: str) -> tuple[str, str] | None:
    """Branch and function in the name of a shipped filter; None in any other."""
    branch, _, function = name.partition("_")
    return (branch, function) if branch in ("online", "target") and function in FUNCTIONS else None
