"""Where a validation runs: a GPU, or Triton's interpreter on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Place:
    """`device`: "cuda" or "cpu"."""

    device: str

    @property
    def is_gpu(self) -> bool:
        """Whether kernels run on a card."""
        return self.device == "cuda"

    @property
    def uuid(self) -> str:
        """The current card's, without `GPU-`; empty on the CPU."""
        return str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid) if self.is_gpu else ""

    def settle(self) -> None:
        """Wait until the device has done all that it was given."""
        if self.is_gpu:
            torch.cuda.synchronize()

    def free_bytes(self) -> int:
        """Bytes that the driver would still give; everything this process keeps unused is returned first."""
        torch.cuda.empty_cache()
        return int(torch.cuda.mem_get_info()[0])

    def sleep(self, microseconds: int) -> None:
        """Keep the current stream busy; on the CPU nothing."""
        if self.is_gpu:
            torch.cuda._sleep(microseconds * 1500)  # noqa: SLF001 - the one way to delay a stream; about 1.5 cycles a ns
