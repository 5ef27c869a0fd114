"""Inputs of a preview: the filter that was asked for, and an assumed or a measured spectrum."""

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


@dataclass(frozen=True)
class Filter:
    """A filter in one epoch: a function of singular values, with the exponent that it has."""

    function: str  # registered with its branch, or a full name
    branch: str
    gain: Gain
    p: float | None = None

    @property
    def name(self) -> str:
        """For a reader."""
        return self.function if self.p is None else f"{self.function}, p={self.p:g}"

    @property
    def stem(self) -> str:
        """For a file's name, with the branch.

        >>> Filter("torch.asinh", "online", torch.asinh).stem
        'online_torch.asinh'
        """
        branch = f"{self.branch}_" if "." in self.function else ""
        return f"{branch}{self.name.replace(', ', '_')}"

    def on(self, sigma: Tensor) -> Preview:
        """What it does to outputs with these singular values."""
        return look(self.name, self.branch, self.gain, sigma)


def choose(chosen: DictConfig, p: Any, epochs: int, epoch: int) -> Filter:
    """The filter of a config in one epoch.

    >>> chosen = OmegaConf.create({"name": "target_pow", "branch": "target", "function": "pow"})
    >>> choose(chosen, -0.5, epochs=1, epoch=0).name
    'target_pow, p=-0.5'
    """
    if chosen.get("function") is None:
        return Filter("identity", "online", filters.get("identity"))
    function = str(chosen.function)
    branch = check_choice("filter.branch", chosen.branch, ["online", "target"])
    shown = function if "." in function else f"{branch}_{function}"
    p = OmegaConf.to_container(p) if OmegaConf.is_config(p) else p
    if p is not None and not filters.takes_p(function):
        raise UserError(
            f"p={p} would be ignored: filter.function={chosen.function} has no exponent; "
            "add p=null, or leave p out."
        )
    value = None if p is None else as_schedule(p, epochs=epochs)(epoch)
    return Filter(shown, branch, filters.get(function, value), value)


def singular_values(cfg: DictConfig, run: Run | None) -> Tensor:
    """Singular values of a batch after a batch norm: their squares sum to n k."""
    if run is None:
        k, batch = cfg.k, cfg.batch_size
        share = torch.arange(1, k + 1, dtype=torch.float64) ** -SPECTRA[cfg.spectrum]
    else:
        share = _first(run, "lam_projection").sort(descending=True).values
        k, batch = len(share), _batch(run)
        share = share[share > 1e-11 * share[0]]  # what a filter's own cut leaves
    share = share[:batch]  # a batch has no directions beyond its rows
    sigma: Tensor = (batch * k * share / share.sum()).sqrt()
    return sigma


def _batch(run: Run) -> int:
    """The rows that the run's filter works on: those of all processes together."""
    if not run.filter_batch:
        raise UserError(f"{run.folder} does not say its batch_size; leave run= out.")
    return run.filter_batch


def _first(run: Run, name: str) -> Tensor:
    if name not in run.spectra or not len(run.spectra[name]):
        why = f" (it diverged in epoch {run.diverged})" if run.diverged else ""
        raise UserError(f"{run.folder} has no measured spectra{why}; leave run= out.")
    return torch.from_numpy(run.spectra[name][0]).double()


def follow(
    cfg: DictConfig, run: Run | None, seen: Preview, chosen: DictConfig, p: Any
) -> rank_path.Path:
    """Theorem 4 with the filter itself, whose exponent may move from step to step."""
    omega = torch.full_like(seen.lam_p, float(cfg.omega))
    if run is not None:
        lam_plus, lam_z = _first(run, "lam_positive"), _first(run, "lam_target")
        omega = ideal_filter(lam_plus, lam_z).nan_to_num(0.0).clamp(0, 1)[: len(omega)]
    n = cfg.steps
    relations = [relation(seen)] * n
    if OmegaConf.is_config(p):
        now = (choose(chosen, p, n, step).on(seen.sigma) for step in range(n))
        relations = [relation(each) for each in now]
    alphas = [cfg.alpha] * n
    return rank_path.follow(seen.lam_p, relations, [omega] * n, alphas, step=cfg.alpha)


def assumed(cfg: DictConfig, run: Run | None) -> str:
    """Where spectrum and omega come from, and what the theorem takes for granted."""
    theorem = (
        "Right panel: Theorem 4, if features move freely and branches share their eigenvectors; "
        "a step is not an epoch."
    )
    if run is not None:
        return (
            "The first spectrum and omega that the run measured; sigma scaled as a batch norm "
            f"scales {_batch(run)} rows. {theorem}"
        )
    return (
        f"Assumed: a {cfg.spectrum} spectrum of {cfg.k} dimensions, {cfg.batch_size} rows scaled "
        f"by a batch norm, omega = λ⁺/λᶻ = {cfg.omega:g}. {theorem}"
    )
