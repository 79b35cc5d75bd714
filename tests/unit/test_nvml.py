"""What the management library tells of a card, and what is left where it is missing or silent."""

from types import SimpleNamespace

import pytest

from hsplan.gpu import nvml
from hsplan.gpu.nvml import Card, read_bus, read_card, read_clock_mhz

SM_CLOCK = 1  # the clock of the processors, as NVML numbers its clocks


class Library:
    """A management library that knows one card, GPU-1234; `silent` names the questions it does not answer."""

    class NVMLError(Exception):
        pass

    def __init__(self, *silent):
        self.silent, self.open = silent, 0
        self.answers = {
            "nvmlSystemGetDriverVersion": "580.1",
            "nvmlDeviceGetCurrPcieLinkGeneration": 4,
            "nvmlDeviceGetCurrPcieLinkWidth": 8,
            "nvmlDeviceGetMaxPcieLinkGeneration": 5,
            "nvmlDeviceGetMaxPcieLinkWidth": 16,
            "nvmlDeviceGetPciInfo": SimpleNamespace(busId=b"00000000:1B:00.0"),
            "nvmlDeviceGetClockInfo": 1980,
        }

    def nvmlInit(self):  # noqa: N802
        if "nvmlInit" in self.silent:
            raise self.NVMLError
        self.open += 1

    def nvmlShutdown(self):  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802
        if uuid != "GPU-1234":
            raise self.NVMLError
        return "the card"

    def __getattr__(self, name):
        def answer(*about):
            if name in self.silent or about not in {(), ("the card",), ("the card", SM_CLOCK)}:
                raise self.NVMLError
            return self.answers[name]

        return answer


@pytest.mark.parametrize(
    ("silent", "uuid", "card"),
    [
        ((), "1234", Card(driver="580.1", generation=4, width=8, max_generation=5, max_width=16)),
        (("nvmlDeviceGetMaxPcieLinkWidth",), "1234", Card(driver="580.1", generation=4, width=8, max_generation=5)),
        ((), "5678", Card(driver="580.1")),
        (("nvmlInit",), "1234", Card()),
    ],
)
def test_the_library_is_asked_and_left_closed(monkeypatch, silent, uuid, card):
    library = Library(*silent)
    monkeypatch.setattr(nvml, "pynvml", library)
    assert read_card(uuid) == card
    assert library.open == 0


def test_without_the_library_nothing_is_told(monkeypatch):
    monkeypatch.setattr(nvml, "pynvml", None)
    assert (read_card("1234"), read_bus("1234"), read_clock_mhz("1234")) == (Card(), None, None)


@pytest.mark.parametrize(
    ("silent", "uuid", "bus", "clock"),
    [
        ((), "1234", "0000:1b:00.0", 1980),
        (("nvmlDeviceGetPciInfo",), "1234", None, 1980),
        ((), "5678", None, None),
        (("nvmlInit",), "1234", None, None),
    ],
)
def test_where_a_card_sits_and_how_fast_it_runs(monkeypatch, silent, uuid, bus, clock):
    library = Library(*silent)
    monkeypatch.setattr(nvml, "pynvml", library)
    assert (read_bus(uuid), read_clock_mhz(uuid)) == (bus, clock)
    assert library.open == 0
