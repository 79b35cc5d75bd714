"""What only the management library tells of a card: its driver and its link. Without the library, nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

try:
    import pynvml
except Exception:  # noqa: BLE001 - a broken one is as good as none, and only the driver's version is lost
    pynvml = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """Driver version, and PCIe generation and width as they are now and at most here; None where it is not told."""

    driver: str | None = None
    generation: int | None = None
    width: int | None = None
    max_generation: int | None = None
    max_width: int | None = None

    @property
    def below_its_best(self) -> bool:
        """Whether the link runs at a lower generation or width than card and slot could."""
        pairs = ((self.generation, self.max_generation), (self.width, self.max_width))
        return any(now is not None and best is not None and now < best for now, best in pairs)


def read_card(uuid: str) -> Card:
    """The card of that UUID (without `GPU-`); a link is at full speed only while it is used."""
    if pynvml is None:
        return Card()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Card()
    try:
        handle = _told(pynvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
        return Card(
            driver=_told(pynvml.nvmlSystemGetDriverVersion),
            generation=_told(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            width=_told(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            max_generation=_told(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            max_width=_told(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        )
    finally:
        pynvml.nvmlShutdown()


def _told(question: Callable[..., Any], *about: object) -> Any:
    try:
        return question(*about)
    except pynvml.NVMLError:
        return None
