"""Bytes as a checkpoint has them before it is stored."""

from __future__ import annotations

import mmap
import os


def staged(size: int) -> memoryview:
    """``size`` bytes that do not compress, on huge pages, as the arena is, and touched."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    block = os.urandom(1 << 20)
    for start in range(0, size, len(block)):
        memory[start : start + len(block)] = block
    return memoryview(memory)
