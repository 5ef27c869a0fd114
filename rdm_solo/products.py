"""Products of float32 matrices with all of their digits, whatever torch was told."""

import torch


def product_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 where torch multiplies float32 matrices with fewer digits (TF32, bfloat16).

    ``torch.set_float32_matmul_precision`` and torch.backends can say so at any time, and for all
    threads: changing that for a product would change it for theirs. Autocast is another matter: a
    product switches it off for itself.

    >>> product_dtype(torch.float64)
    torch.float64
    """
    multiply = (getattr(torch.backends, name) for name in ("mkldnn", "cuda"))
    told = [getattr(getattr(m, "matmul", None), "fp32_precision", None) for m in multiply]
    if None in told:  # torch 2.8
        told = [{"highest": "ieee"}.get(torch.get_float32_matmul_precision(), "tf32")]
    return dtype if set(told) <= {"ieee", "none"} else torch.float64
