"""What only the management library tells of a card: its driver and its link. Without the library, nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

try:
    import pynvml
except Exception:  # noqa: BLE001 - a broken one is as good as none, and only the driver's version is lost
    pynvml = None


SM_CLOCK = 1  # NVML_CLOCK_SM
BUS_CHARACTERS = 12  # the library writes a domain of eight digits, the kernel one of four


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
    with _library() as there:
        if not there:
            return Card()
        handle = _told(pynvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
        return Card(
            driver=_told(pynvml.nvmlSystemGetDriverVersion),
            generation=_told(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
            width=_told(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
            max_generation=_told(pynvml.nvmlDeviceGetMaxPcieLinkGeneration, handle),
            max_width=_told(pynvml.nvmlDeviceGetMaxPcieLinkWidth, handle),
        )


def read_bus(uuid: str) -> str | None:
    """Where the card sits, as the kernel writes it: `0000:1b:00.0`."""
    with _library() as there:
        if not there:
            return None
        found = _told(pynvml.nvmlDeviceGetPciInfo, _told(pynvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}"))
        bus = getattr(found, "busId", "")
        text = bus.decode() if isinstance(bus, bytes) else str(bus)
        return text.lower()[-BUS_CHARACTERS:] or None


def read_clock_mhz(uuid: str) -> int | None:
    """The clock at which the card's processors run now."""
    with _library() as there:
        if not there:
            return None
        handle = _told(pynvml.nvmlDeviceGetHandleByUUID, f"GPU-{uuid}")
        clock = _told(pynvml.nvmlDeviceGetClockInfo, handle, SM_CLOCK)
        return None if clock is None else int(clock)


@contextlib.contextmanager
def _library() -> Iterator[bool]:
    """Whether the library answers inside the block."""
    opened = _opened()
    try:
        yield opened
    finally:
        if opened:
            pynvml.nvmlShutdown()


def _opened() -> bool:
    if pynvml is None:
        return False
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def _told(question: Callable[..., Any], *about: object) -> Any:
    try:
        return question(*about)
    except pynvml.NVMLError:
        return None
