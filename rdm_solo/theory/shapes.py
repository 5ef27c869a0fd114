r"""Checks of the shapes that the theorems' functions take."""

from __future__ import annotations

from torch import Tensor

__all__ = ["check_spectra", "check_square"]


def check_square(**matrices: Tensor) -> None:
    shapes = {tuple(C.shape) for C in matrices.values()}
    (shape, *others) = shapes
    if others or len(shape) != 2 or shape[0] != shape[1]:
        got = ", ".join(f"{name} {tuple(C.shape)}" for name, C in matrices.items())
        raise ValueError(f"square matrices of one shape (k, k) are needed, got {got}.")


def check_spectra(**spectra: Tensor) -> None:
    shapes = {tuple(lam.shape) for lam in spectra.values()}
    if len(shapes) > 1 or len(next(iter(shapes))) != 1:
        got = ", ".join(f"{name} {tuple(lam.shape)}" for name, lam in spectra.items())
        raise ValueError(f"spectra of one shape (k,) are needed, got {got}.")
