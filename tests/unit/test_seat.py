"""Which rank a process is, by its environment."""

import pytest

from hsplan.errors import InputError
from hsplan.gpu.seat import Seat, seat_of

TORCHRUN = {
    "RANK": "9",
    "LOCAL_RANK": "1",
    "WORLD_SIZE": "16",
    "LOCAL_WORLD_SIZE": "8",
    "MASTER_ADDR": "node0",
    "MASTER_PORT": "29500",
}


def test_torchrun_gives_a_seat():
    seat = Seat(rank=9, size=16, local_rank=1, local_size=8, address="node0", port=29500)
    assert seat_of(TORCHRUN, None) == seat_of(TORCHRUN, 16) == seat
    assert seat.started_by is None


def test_a_rank_that_hsplan_starts_knows_by_whom():
    assert seat_of({**TORCHRUN, "HSPLAN_STARTED_BY": "4711"}, 16).started_by == 4711


@pytest.mark.parametrize("missing", ["RANK", "LOCAL_RANK"])
def test_a_process_without_a_rank_is_on_its_own(missing):
    environment = {name: value for name, value in TORCHRUN.items() if name != missing}
    assert seat_of(environment, 4) is None
    assert seat_of({}, None) is None


def refusal(environment, wanted=None):
    with pytest.raises(InputError) as caught:
        seat_of(environment, wanted)
    (problem,) = caught.value.problems
    return problem.where, problem.what, problem.remedy


def test_another_number_of_ranks_than_there_are_is_refused():
    assert refusal(TORCHRUN, 8) == (
        "--ranks",
        "8 ranks, but WORLD_SIZE is 16",
        "leave it out under torchrun, or give as many",
    )


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"RANK": "16"}, "RANK is 16, but WORLD_SIZE is 16"),
        ({"WORLD_SIZE": "0"}, "RANK is 9, but WORLD_SIZE is 0"),
        ({"LOCAL_RANK": "8"}, "LOCAL_RANK is 8, but LOCAL_WORLD_SIZE is 8"),
        ({"LOCAL_WORLD_SIZE": "17"}, "LOCAL_WORLD_SIZE is 17, but WORLD_SIZE is 16"),
        ({"MASTER_ADDR": ""}, "RANK is set, but MASTER_ADDR is not"),
        ({"MASTER_PORT": "0"}, "MASTER_PORT is 0, and no port"),
        ({"MASTER_PORT": "65536"}, "MASTER_PORT is 65536, and no port"),
    ],
)
def test_a_seat_that_no_run_has_is_refused(wrong, what):
    assert refusal({**TORCHRUN, **wrong}) == ("", what, "start the ranks with torchrun, or unset RANK")


@pytest.mark.parametrize("name", ["WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_PORT"])
def test_half_a_seat_is_refused(name):
    rest = {key: value for key, value in TORCHRUN.items() if key != name}
    remedy = "start the ranks with torchrun, or unset RANK"
    assert refusal(rest) == (name, f"RANK is set, but {name} is not", remedy)
    assert refusal({**TORCHRUN, name: "two"}) == (name, f"RANK is set, but {name} is two", remedy)
    assert refusal({**TORCHRUN, name: "-1"})[1] == f"RANK is set, but {name} is -1"
