"""Inputs of a preview: a filter in one epoch, and an assumed or a measured spectrum."""

from dataclasses import dataclass
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from rdm_solo import filters
from rdm_solo.filters.schedules import as_schedule
from rdm_solo.messages import UserError, check_choice
from rdm_solo.runs.folder import Run
from rdm_solo.spectra.comparison import ideal_filter
from rdm_solo.theory import rank_path
from rdm_solo.theory.filter_effect import Gain, Preview, look, relation

SPECTRA = {"1/i": 1.0, "1/i^2": 2.0, "flat": 0.0}
ALPHA = 0.1  # of Theorem 4: the share of the way to the target in one step


@dataclass(frozen=True)
class Filter:
    """A function of singular values, with its exponent in one epoch."""

    function: str  # registered with its branch, or a full name
    branch: str
    gain: Gain
    p: float | None = None

    @property
    def name(self) -> str:
        return self.function if self.p is None else f"{self.function}, p={self.p:g}"

    @property
    def stem(self) -> str:
        """The name in a file's name, with the branch."""
        branch = f"{self.branch}_" if "." in self.function else ""
        return f"{branch}{self.name.replace(', ', '_')}"

    def on(self, sigma: Tensor) -> Preview:
        """Return its effect on outputs with these singular values."""
        return look(self.name, self.branch, self.gain, sigma)


def choose(config: DictConfig, p: Any, epochs: int, epoch: int) -> Filter:
    """Return the filter of a config in one epoch.

    >>> config = OmegaConf.create({"name": "target_pow", "branch": "target", "function": "pow"})
    >>> choose(config, -0.5, epochs=1, epoch=0).name
    'target_pow, p=-0.5'
    """
    if config.get("function") is None:
        return Filter("identity", "online", filters.get("identity"))
    function = str(config.function)
    branch = check_choice("filter.branch", config.get("branch"), ["online", "target"])
    p = OmegaConf.to_container(p) if OmegaConf.is_config(p) else p
    if p is not None and not filters.takes_p(function):
        raise UserError(f"p={p} would be ignored: filter.function={function} has no exponent.")
    value = None if p is None else as_schedule(p, epochs=epochs)(epoch)
    name = function if "." in function else f"{branch}_{function}"
    return Filter(name, branch, filters.get(function, value), value)


def singular_values(cfg: DictConfig, run: Run | None) -> Tensor:
    """Return singular values of a batch after a batch norm: their squares sum to n k."""
    if run is None:
        k, batch = cfg.k, cfg.batch_size
        share = torch.arange(1, k + 1, dtype=torch.float64) ** -SPECTRA[cfg.spectrum]
    else:
        share = _first(run, "lam_projection").sort(descending=True).values
        k, batch = len(share), _batch(run)
        share = share[share > 1e-11 * share[0]]  # a filter cuts off smaller ones
    share = share[:batch]  # a batch has no directions beyond its rows
    sigma: Tensor = (batch * k * share / share.sum()).sqrt()
    return sigma


def _batch(run: Run) -> int:
    """Return the rows that the run's filter works on: those of all processes together."""
    if not run.filter_batch:
        raise UserError(f"{run.folder} does not say its batch_size; leave run= out.")
    return run.filter_batch


def _first(run: Run, name: str) -> Tensor:
    if name not in run.spectra or not len(run.spectra[name]):
        raise UserError(f"{run.folder} has no measured spectra; leave run= out.")
    return torch.from_numpy(run.spectra[name][0]).double()


def follow(
    steps: int, run: Run | None, effect: Preview, config: DictConfig, p: Any
) -> rank_path.Path:
    """Iterate Theorem 4 with the filter, whose exponent may change from step to step."""
    omega = torch.ones_like(effect.lam_p)  # perfectly aligned positives
    if run is not None:
        lam_plus, lam_z = _first(run, "lam_positive"), _first(run, "lam_target")
        omega = ideal_filter(lam_plus, lam_z).nan_to_num(0.0).clamp(0, 1)[: len(omega)]
    relations = [relation(effect)] * steps
    if OmegaConf.is_config(p):
        each = (choose(config, p, steps, step).on(effect.sigma) for step in range(steps))
        relations = [relation(effect_now) for effect_now in each]
    return rank_path.follow(effect.lam_p, relations, [omega] * steps, [ALPHA] * steps, step=ALPHA)


def assumptions(cfg: DictConfig, run: Run | None) -> str:
    """Say where spectrum and omega come from, and what the theorem assumes."""
    source = (
        f"Assumed: a {cfg.spectrum} spectrum of {cfg.k} dimensions and omega = λ⁺/λᶻ = 1"
        if run is None
        else "The first spectrum and omega that the run measured"
    )
    return (
        f"{source}; sigma scaled as a batch norm scales {_batch(run) if run else cfg.batch_size} "
        "rows. Right panel: Theorem 4, if features move freely and branches share their "
        "eigenvectors; a step is not an epoch."
    )
