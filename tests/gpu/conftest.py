"""
What the kernel tests share: the GPU when there is one, Triton's interpreter when not, arrays between guard bands.

Without torch and triton the folder is passed over.
"""

from __future__ import annotations

import importlib.util
import math
import os

import pytest

POISON = 0xA5
BAND_BYTES = 4096

if importlib.util.find_spec("torch") and importlib.util.find_spec("triton"):
    import torch

    if not torch.cuda.is_available():
        os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined, that is, when the tests are imported
else:
    collect_ignore_glob = ["test_*.py"]


class Guarded:
    """A poisoned tensor `view` with a poisoned band on either side."""

    def __init__(self, *shape, device, dtype=None):
        dtype = dtype or torch.uint8
        size = math.prod(shape) * dtype.itemsize
        self._whole = torch.full((2 * BAND_BYTES + size,), POISON, dtype=torch.uint8, device=device)
        self.view = self._whole[BAND_BYTES : BAND_BYTES + size].view(dtype).view(shape)
        self._after = BAND_BYTES + size

    def intact(self):
        return bool((self._whole[:BAND_BYTES] == POISON).all() and (self._whole[self._after :] == POISON).all())


@pytest.fixture(scope="session")
def device():
    return "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(scope="session")
def guarded(device):
    """Make a `Guarded` tensor on the device, of `values` given or of poison."""

    def make(*shape, values=None, dtype=None):
        if values is None:
            return Guarded(*shape, device=device, dtype=dtype)
        array = Guarded(*values.shape, device=device, dtype=values.dtype)
        array.view.copy_(values)
        return array

    return make


@pytest.fixture(scope="session")
def settle(device):
    """Wait for the GPU."""
    return torch.cuda.synchronize if device == "cuda" else lambda: None


@pytest.fixture(scope="session")
def captured(device):
    """Run a call once and make it repeatable: by CUDA-graph replay on a GPU, as it is on the CPU."""

    def capture(call):
        call()
        if device == "cpu":
            return call
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        return graph.replay

    return capture
