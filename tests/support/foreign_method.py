"""Methods of solo-learn with nothing of this package in them."""

from __future__ import annotations

import torch

from rdm_solo.methods import solo_learn
from support.small_methods import configure

# Smaller sizes than those of our configs, in methods that have such a part.
SIZES = {
    "proj_hidden_dim": 32,
    "proj_output_dim": 16,
    "pred_hidden_dim": 16,
    "num_prototypes": 24,
    "queue_size": 64,
}


def as_it_is(name: str, cfg):
    """Return solo-learn's own class of that method with the sizes of our config."""
    solo = solo_learn.TABLE[name]
    if solo_learn.CURRENT:
        return solo(solo_learn.current_config(cfg))
    return solo(**solo_learn.legacy_arguments(cfg))


def foreign(name: str, make=None):
    """Return a small model of solo-learn's own class of the installed generation."""
    cfg = configure(
        f"method={name}", "backbone.name=resnet18", "backbone.kwargs.zero_init_residual=false"
    )
    for option, size in SIZES.items():
        if cfg.method.kwargs.get(option):
            cfg.method.kwargs[option] = size
    torch.manual_seed(0)
    return make(cfg) if make else as_it_is(name, cfg)
