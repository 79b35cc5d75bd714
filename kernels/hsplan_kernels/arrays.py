"""
What kernels take for granted of their arguments: shape, type, order and start in memory, and numbers from 1 on.

Each check raises ValueError with what is wrong and what to give. None looks at an element, so none waits for a GPU or
allocates on it: the calls that make them may be captured in a CUDA graph.
"""

from __future__ import annotations

from numbers import Integral

import torch

INTEGERS = (torch.int32, torch.int64)
ALIGNMENT_BYTES = 16  # kernels move rows in pieces of so many bytes


def check_numbers(**numbers: int) -> None:
    """Refuse what is not a whole number from 1 on."""
    for name, number in numbers.items():
        if not isinstance(number, Integral) or isinstance(number, bool) or number < 1:
            raise ValueError(f"{name} {number}: give a whole number from 1 on")


def check_row_bytes(row_bytes: int) -> None:
    """Refuse rows that are not whole pieces of 16 bytes."""
    if not isinstance(row_bytes, Integral) or row_bytes < 1 or row_bytes % ALIGNMENT_BYTES:
        raise ValueError(f"rows of {row_bytes} bytes: give a multiple of {ALIGNMENT_BYTES}")


def check_array(name: str, array: torch.Tensor, shape: tuple[int, ...], *dtypes: torch.dtype) -> None:
    """Refuse an array that has gaps, another shape or none of the types."""
    if array.shape != shape or array.dtype not in dtypes or not array.is_contiguous():
        wanted = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise ValueError(f"{described(name, array)}: give contiguous {wanted} {list(shape)}")


def check_memory(name: str, array: torch.Tensor) -> None:
    """Refuse an array that has gaps or does not start at a multiple of 16 bytes."""
    if not array.is_contiguous():
        raise ValueError(f"{name} is not contiguous: give whole pools, not views with gaps")
    if array.data_ptr() % ALIGNMENT_BYTES:
        raise ValueError(f"{name} starts at {array.data_ptr():#x}: give memory aligned to {ALIGNMENT_BYTES} bytes")


def check_pool(name: str, pool: torch.Tensor) -> None:
    """Refuse what is not uint8 [rows, row bytes], contiguous, rows and start at multiples of 16 bytes."""
    if pool.dim() != 2 or pool.dtype != torch.uint8:
        raise ValueError(f"{described(name, pool)}: give uint8 [rows, row bytes], other types as view(torch.uint8)")
    check_row_bytes(pool.shape[1])
    check_memory(name, pool)


def rows_and_columns(name: str, array: torch.Tensor) -> tuple[int, int]:
    """The two sizes of an array; one of more or fewer is refused."""
    if array.dim() != 2:
        raise ValueError(f"{described(name, array)}: give two dimensions")
    rows, columns = array.shape
    return rows, columns


def described(name: str, array: torch.Tensor) -> str:
    """`rows: int32 [3, 2] with gaps`."""
    gaps = "" if array.is_contiguous() else " with gaps"
    return f"{name}: {str(array.dtype).removeprefix('torch.')} {list(array.shape)}{gaps}"
