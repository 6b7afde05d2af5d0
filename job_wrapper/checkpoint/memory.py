"""Fresh memory for large tensors, on huge pages where the system has them: touching it then costs a third."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

import torch

_LEAST = 4 << 20
"""Bytes: below this there is hardly a whole huge page in it."""
_PAGE = mmap.PAGESIZE
_ADVICE = getattr(mmap, "MADV_HUGEPAGE", None)


def empty(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """``torch.empty``: an ordinary tensor that owns its memory."""
    tensor = torch.empty(tuple(shape), dtype=dtype)
    length = tensor.numel() * tensor.element_size()
    if length >= _LEAST and _ADVICE is not None:
        start = -(-tensor.data_ptr() // _PAGE) * _PAGE
        stop = (tensor.data_ptr() + length) // _PAGE * _PAGE
        # Advice: where it isn't taken the memory is as good as any.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(stop - start), ctypes.c_int(_ADVICE))
    return tensor
