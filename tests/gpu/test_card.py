"""The preflight on a real card: the figures that only it can give."""

import pytest
import torch

from hsplan.gpu.preflight import preflight

MIB = 2**20

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no card to look at without a GPU")


def test_a_card_says_what_it_is():
    machine = preflight(host_memory=None, needed_host_bytes=64 * MIB, progress=lambda *_: None)
    assert machine.gpu == torch.cuda.get_device_name()
    assert 0 < machine.free_bytes <= machine.memory_bytes
    assert machine.host_bytes == 64 * MIB
