"""The Rank Differential Mechanism for solo-learn: spectral filters in place of predictors."""

__version__ = "0.1.0"


def register_methods() -> None:
    """Add ``rdm_simsiam``, ``rdm_byol`` and ``symsimsiam`` to solo-learn's own table of methods.

    Its entry points then run them from its own YAML files. Needs solo-learn's current main.
    """
    from rdm_solo.methods import plugin, solo_learn

    solo_learn.register(plugin.METHODS)
