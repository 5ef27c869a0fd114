"""Our methods for solo-learn's own scripts; they read ``method_kwargs`` from its config.

``rdm-solo plugin`` registers them and runs one of solo-learn's scripts.
"""

from dataclasses import replace

from omegaconf import DictConfig, OmegaConf

from rdm_solo.ground.values import check_choice
from rdm_solo.methods import models, solo_learn, symmetric
from rdm_solo.methods.chosen_filter import ChosenFilter, shipped_filters

# In both simsiam.yaml files of solo-learn 1.0.6, whose SimSiam does not use it.
UNUSED = "temperature"


class _FromSoloConfig:
    """A method that reads its options, with ``defaults``, from solo-learn's own config."""

    @classmethod
    def add_and_assert_specific_cfg(cls, cfg: DictConfig) -> DictConfig:
        kwargs = cfg.get("method_kwargs") or {}
        options = [*cls.defaults, "proj_hidden_dim", "proj_output_dim", UNUSED]
        for name in kwargs:
            check_choice(f"method={cfg.method}: an option in method_kwargs", name, options)
        cfg.method_kwargs = OmegaConf.merge(cls.defaults, kwargs)
        return super().add_and_assert_specific_cfg(cfg)

    def chosen_filter(self, cfg: DictConfig) -> ChosenFilter:
        """Return the filter of ``conf/filter`` that ``method_kwargs`` names."""
        kwargs, filters = cfg.method_kwargs, shipped_filters()
        chosen = filters[check_choice("method_kwargs.filter", kwargs.filter, filters)]
        if kwargs.p is None:
            return chosen
        return replace(chosen, p=kwargs.p)


class RDMSimSiam(_FromSoloConfig, models.FilteredSimSiam, solo_learn.TABLE["simsiam"]):
    """``method: rdm_simsiam``, with ``method_kwargs.filter`` and ``method_kwargs.p``."""

    defaults = {"filter": "learnable", "p": None, "pred_hidden_dim": 512}


class RDMBYOL(_FromSoloConfig, models.FilteredBYOL, solo_learn.TABLE["byol"]):
    """``method: rdm_byol``, with ``method_kwargs.filter`` and ``method_kwargs.p``."""

    defaults = {"filter": "learnable", "p": None, "pred_hidden_dim": 4096}


class SymSimSiam(_FromSoloConfig, symmetric.Symmetric, solo_learn.TABLE["base"]):
    """``method: symsimsiam``; ``center: null`` makes it the symmetric baseline."""

    defaults = {"center": "ema", "center_momentum": 0.9, "last_bn": True}


METHODS = {"rdm_simsiam": RDMSimSiam, "rdm_byol": RDMBYOL, "symsimsiam": SymSimSiam}
