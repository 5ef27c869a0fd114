"""What stands for a filter in a run that has no function of singular values, and its direction."""

from __future__ import annotations

from typing import Any

from omegaconf import OmegaConf

from rdm_solo.runs.folder import Run

__all__ = ["described"]


def described(run: Run) -> str:
    """The design in a sentence, and whether it acts as a low-pass filter by the report's rule."""
    from rdm_solo.report import verdicts

    if run.described.symmetric:
        return f"{run.label}: no filter of any kind, since both branches are one output."
    verdict = verdicts.low_pass([run])
    return (
        f"{run.label}: {_design(run)}. {verdict.question} {verdict.answer} ({verdict.numbers}; "
        "as an online filter at the last measured epoch, by the report's rule)."
    )


def _design(run: Run) -> str:
    if run.described.asymmetry == "sinkhorn":
        return (
            f"the target's Sinkhorn assignment is the implied filter ({_of(run, 'sk_iters')} "
            f"iterations at ε = {_of(run, 'sk_epsilon')}; the online softmax has the temperature "
            f"{_of(run, 'temperature')})"
        )
    if run.described.asymmetry == "centring":
        return f"the target's softmax is the implied filter ({_softmax(run)})"
    linear = "linear " if run.chosen_filter.linear else ""
    return f"the filter is what the {linear}predictor learned"


def _softmax(run: Run) -> str:
    """DINO's centre and temperatures in words."""
    centred = OmegaConf.select(run.config, "method.centring", default=True)
    sharpened = OmegaConf.select(run.config, "method.sharpening", default=True)
    online = _of(run, "student_temperature")
    temperature = _of(run, "teacher_temperature")
    if _of(run, "warmup_teacher_temperature_epochs") not in (0, "?"):
        temperature = f"{_of(run, 'warmup_teacher_temperature')} and later {temperature}"
    return (
        f"{'centred' if centred else 'not centred'}, "
        f"{f'temperature {temperature}' if sharpened else 'not sharpened'}; "
        f"the online branch has the temperature {online}"
    )


def _of(run: Run, name: str) -> Any:
    return OmegaConf.select(run.config, f"method.kwargs.{name}", default="?")
