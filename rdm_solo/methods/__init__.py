"""The methods, for both versions of solo-learn; solo-learn is imported on first use."""

from rdm_solo import import_on_first_use

__all__ = [
    "BYOL",
    "DINO",
    "SimSiam",
    "SwAV",
    "SymSimSiam",
    "build",
    "prepare",
]

__getattr__ = import_on_first_use(
    __all__,
    "rdm_solo.methods.building",
    "rdm_solo.methods.models",
    "rdm_solo.methods.symmetric",
    "rdm_solo.methods.unfiltered",
)
