"""solo-learn's own methods, without any part of this package."""

import torch

from rdm_solo.methods import solo_learn
from support.small_methods import configure

# Sizes smaller than in our configs, for methods that have the option.
SIZES = {
    "proj_hidden_dim": 32,
    "proj_output_dim": 16,
    "pred_hidden_dim": 16,
    "num_prototypes": 24,
    "queue_size": 64,
}


def foreign(name: str, make=None):
    """Return a small model of the installed solo-learn's own class, or ``make(cfg)``."""
    cfg = configure(
        f"method={name}", "backbone.name=resnet18", "backbone.kwargs.zero_init_residual=false"
    )
    for option, size in SIZES.items():
        if cfg.method.kwargs.get(option):
            cfg.method.kwargs[option] = size
    torch.manual_seed(0)
    if make:
        return make(cfg)
    solo = solo_learn.TABLE[name]
    if solo_learn.CURRENT:
        return solo(solo_learn.current_config(cfg))
    return solo(**solo_learn.legacy_arguments(cfg))
