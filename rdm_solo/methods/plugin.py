"""solo-learn's own entry point with this package's methods.

:func:`register` adds them to solo-learn's table of methods; as a command, this module does so and
then runs one of solo-learn's scripts, in every process that Lightning starts::

    python -m rdm_solo.plugin main_pretrain.py --config-path CONFIGS --config-name rdm_simsiam.yaml
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from rdm_solo.cli.answers import fail
from rdm_solo.messages import suggest
from rdm_solo.methods import models, solo_learn
from rdm_solo.methods.descriptions import shipped_filters

__all__ = ["register"]

USAGE = """usage: python -m rdm_solo.plugin SCRIPT ...

Run one of solo-learn's own scripts with rdm_simsiam, rdm_byol and symsimsiam among its methods:

    python -m rdm_solo.plugin main_pretrain.py --config-path CONFIGS --config-name rdm_simsiam.yaml

SCRIPT is the path of the script; what follows it is handed on. Each process that Lightning starts
has the methods as well."""

# Lightning starts the other processes with this module's name and the arguments that follow it.
SCRIPT_VARIABLE = "RDM_SOLO_SCRIPT"


class _FromSoloConfig:
    """A method that reads its options from ``method_kwargs`` of solo-learn's own config."""

    defaults: dict[str, Any]

    @classmethod
    def add_and_assert_specific_cfg(cls, cfg: DictConfig) -> DictConfig:
        known = [*cls.defaults, "proj_hidden_dim", "proj_output_dim"]
        for name in cfg.get("method_kwargs") or {}:
            if name not in known:
                raise ValueError(
                    f"method_kwargs.{name} is no option of method={cfg.method}, which takes "
                    f"{', '.join(known)}{suggest(name, known) or '.'}"
                )
        cfg.method_kwargs = OmegaConf.merge(cls.defaults, cfg.get("method_kwargs") or {})
        return super().add_and_assert_specific_cfg(cfg)  # type: ignore[misc,no-any-return]

    @property
    def learnable_params(self) -> list[dict[str, Any]]:
        """Without empty groups: a filter learns nothing, and a static one breaks resuming."""
        groups = [
            {**group, "params": list(group["params"])}
            for group in super().learnable_params  # type: ignore[misc]
        ]
        return [group for group in groups if group["params"]]


class RDMSimSiam(_FromSoloConfig, models.FilteredSimSiam, solo_learn.original("simsiam")):  # type: ignore[misc]
    """``method: rdm_simsiam``, with ``method_kwargs.filter`` and ``method_kwargs.p``."""

    defaults = {"filter": "learnable", "p": None, "pred_hidden_dim": 512}

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.install(cfg.method_kwargs.filter, _filter(cfg))


class RDMBYOL(_FromSoloConfig, models.FilteredBYOL, solo_learn.original("byol")):  # type: ignore[misc]
    """``method: rdm_byol``, with ``method_kwargs.filter`` and ``method_kwargs.p``."""

    defaults = {"filter": "learnable", "p": None, "pred_hidden_dim": 4096}

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        self.install(cfg.method_kwargs.filter, _filter(cfg))


class SymSimSiam(_FromSoloConfig, models.Symmetric, solo_learn.original("base")):  # type: ignore[misc]
    """``method: symsimsiam``; ``center: null`` makes it the symmetric baseline."""

    defaults = {"center": "ema", "center_momentum": 0.9, "last_bn": True}

    def __init__(self, cfg: DictConfig) -> None:
        super().__init__(cfg)
        kwargs = cfg.method_kwargs
        self.install(
            kwargs.proj_hidden_dim,
            kwargs.proj_output_dim,
            kwargs.last_bn,
            kwargs.center,
            kwargs.center_momentum,
        )


METHODS = {"rdm_simsiam": RDMSimSiam, "rdm_byol": RDMBYOL, "symsimsiam": SymSimSiam}


def register() -> None:
    """Add ``rdm_simsiam``, ``rdm_byol`` and ``symsimsiam`` to solo-learn's own methods."""
    solo_learn.register(METHODS)


def _filter(cfg: DictConfig) -> Any:
    """The filter that ``method_kwargs`` names; names and default exponents are those of conf/."""
    kwargs, known = cfg.method_kwargs, shipped_filters()
    if kwargs.filter not in known:
        raise ValueError(
            f"method_kwargs.filter must be one of {', '.join(known)}, "
            f"got {kwargs.filter!r}{suggest(kwargs.filter, list(known)) or '.'}"
        )
    chosen = known[kwargs.filter]
    if kwargs.p is not None:
        chosen = replace(chosen, p=kwargs.p)
    return models.make_filter(chosen, cfg.max_epochs)


def main() -> None:
    """Register, then run the script that is named first."""
    if SCRIPT_VARIABLE not in os.environ:
        if len(sys.argv) < 2 or sys.argv[1] in ("-h", "--help"):
            print(USAGE)
            raise SystemExit(0 if len(sys.argv) > 1 else 2)
        os.environ[SCRIPT_VARIABLE] = str(Path(sys.argv.pop(1)).resolve())
    script = Path(os.environ[SCRIPT_VARIABLE])
    if not script.is_file():
        fail(f"{script} is no file; give solo-learn's main_pretrain.py.")
    try:
        register()
    except RuntimeError as error:
        fail(str(error))
    sys.path.insert(0, str(script.parent))
    # As its own program would run it, but for the registered methods.
    code = compile(script.read_bytes(), str(script), "exec")
    exec(code, {"__name__": "__main__", "__file__": str(script)})
