"""What the management library tells of a card, and what is left where it is missing or silent."""

import pytest

from hsplan.gpu import nvml
from hsplan.gpu.nvml import Card, read_card


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
            if name in self.silent or about not in {(), ("the card",)}:
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
    assert read_card("1234") == Card()
