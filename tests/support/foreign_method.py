"""A method of solo-learn's with nothing of this package in it."""

from __future__ import annotations

import torch

from rdm_solo.methods import solo_learn
from rdm_solo.methods.descriptions import METHODS
from support.small_methods import configure

FOREIGN = {
    "simsiam": {"pred_hidden_dim": 16},
    "byol": {"pred_hidden_dim": 16},
    "nnsiam": {"pred_hidden_dim": 16, "queue_size": 64},
    "mocov2plus": {"temperature": 0.2, "queue_size": 64},
    "nnclr": {"pred_hidden_dim": 16, "queue_size": 64, "temperature": 0.2},
    "nnbyol": {"pred_hidden_dim": 16, "queue_size": 64},
    "ressl": {"queue_size": 64, "temperature_q": 0.1, "temperature_k": 0.04},
    "simclr": {"temperature": 0.2},
    "barlow_twins": {"lamb": 0.005, "scale_loss": 0.1},
    "vicreg": {"sim_loss_weight": 25.0, "var_loss_weight": 25.0, "cov_loss_weight": 1.0},
    "swav": {
        **{"num_prototypes": 24, "temperature": 0.1, "sk_iters": 3, "sk_epsilon": 0.05},
        **{"queue_size": 0, "epoch_queue_starts": 0, "freeze_prototypes_epochs": 1},
    },
    "dino": {
        **{"num_prototypes": 24, "clip_grad": 0, "freeze_last_layer": 1},
        **{"student_temperature": 0.1, "teacher_temperature": 0.07},
        **{"warmup_teacher_temperature": 0.04, "warmup_teacher_temperature_epochs": 0},
        **{"norm_last_layer": True, "use_bn_in_head": False},
    },
}


def as_it_is(name: str, cfg):
    """solo-learn's own class of that method with the sizes of our config, and nothing of ours."""
    solo = solo_learn.TABLE[name]
    if solo_learn.CURRENT:
        return solo(solo_learn.current_config(cfg))
    return solo(**solo_learn.legacy_arguments(cfg))


def foreign(name: str, make=None):
    """solo-learn's own class of the installed generation, without a line of ours in it."""
    momentum = "method=byol" if METHODS[name].momentum else "method=simsiam"
    cfg = configure(momentum, "backbone.name=resnet18", "backbone.kwargs.zero_init_residual=false")
    cfg.method.name = name
    cfg.method.kwargs = {"proj_hidden_dim": 32, "proj_output_dim": 16, **FOREIGN[name]}
    torch.manual_seed(0)
    return make(cfg) if make else as_it_is(name, cfg)
