"""Signs of life and ends of ranks, without ranks: a store in this process, times and exit codes by hand."""

import signal
from types import SimpleNamespace

import pytest
from torch.distributed import HashStore

from hsplan.errors import CannotRunError, InputError, Problem, UnsupportedError
from hsplan.gpu import launch, watch
from hsplan.gpu.group import ALONE, Group
from hsplan.gpu.launch import _ended
from hsplan.gpu.watch import Beats, Watch


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    found = Clock()
    monkeypatch.setattr(watch, "time", found)
    return found


def test_a_rank_is_silent_when_its_sign_does_not_change(clock):
    store = HashStore()
    first, second, seen = Beats(store, 0, "here"), Beats(store, 1, "there"), Watch(store, 2)
    first.beat("link")
    second.beat("link")
    assert seen.silent(10) is None
    clock.now += 8
    first.beat("pools")
    assert seen.silent(10) is None
    clock.now += 3
    assert seen.silent(10) == (1, 11.0)
    problem = seen.silence(1, 11.0)
    assert problem.what == "rank 1 on there has given no sign of life for 11 s, since: link"
    clock.now += 8
    assert seen.silent(10) == (1, 19.0)  # the first is silent too by now, the second for longer
    second.beat("link")
    assert seen.silent(10) == (0, 11.0)


def test_the_same_stage_is_a_new_sign_every_fifth_of_a_second(clock):
    store = HashStore()
    beats = Beats(store, 0, "here")
    signs = []
    for wait in (0, 0.1, 0.15, 0.1):
        clock.now += wait
        beats.beat("decode steps")
        signs.append(store.get("beat/0").decode())
    assert signs == ["1 decode steps", "1 decode steps", "2 decode steps", "2 decode steps"]


def test_a_rank_that_has_not_come_yet_is_waited_for_longer(clock):
    seen = Watch(HashStore(), 1)
    clock.now += 300
    assert seen.silent(10) is None
    clock.now += 1
    assert seen.silent(10) == (0, 301.0)
    assert seen.silence(0, 301.0).what == "rank 0 has given no sign of life for 301 s, since: starting"


def ended(codes, *, failures=(), tail=""):
    """The error for exit codes; `failures` are (rank, problem, exit code) as ranks tell them."""
    store = HashStore()
    for rank in range(len(codes)):
        Beats(store, rank, "host").beat("decode steps")
    for rank, what, code in failures:
        group = SimpleNamespace(rank=rank, _store=store)
        Group.fail(group, (Problem(what=what, where="--steps"),), code)
    return _ended(codes, SimpleNamespace(tail=lambda _: tail), store, Watch(store, len(codes)))


def told(error):
    (problem,) = error.problems
    return problem.where, problem.what, problem.remedy


def test_a_killed_rank_is_the_cause_whatever_the_others_say():
    error = ended([4, -9], failures=[(0, "I waited", 4)])
    assert type(error) is CannotRunError
    assert told(error)[1] == "rank 1 on host was killed by signal 9 (SIGKILL) in: decode steps"
    assert told(ended([-signal.SIGSEGV, None]))[1:] == (
        "rank 0 on host was killed by signal 11 (SIGSEGV) in: decode steps",
        "see dmesg, and what nvidia-smi says",
    )


@pytest.mark.parametrize(("code", "kind"), [(2, InputError), (3, UnsupportedError), (4, CannotRunError)])
def test_what_a_rank_says_of_its_end_is_told_with_its_name_and_exit_code(code, kind):
    error = ended([None, None, code], failures=[(2, "too many", code)])
    assert (type(error), told(error)[:2]) == (kind, ("rank 2 on host: --steps", "too many"))


def test_a_rank_that_ended_because_of_another_is_not_the_cause():
    # The first has seen the failure of the second, which is still giving its memory back.
    assert told(ended([4, None], failures=[(1, "no card", 4)]))[0] == "rank 1 on host: --steps"


def test_a_bug_of_a_rank_is_one():
    error = ended([None, 5], failures=[(1, "ZeroDivisionError: none", 5)])
    assert (type(error), str(error)) == (RuntimeError, "rank 1 on host: ZeroDivisionError: none")


def test_a_rank_that_ends_without_a_word_is_named_with_the_last_line_that_it_wrote():
    error = ended([None, 7], tail="Aborted")
    assert told(error)[1:] == ("rank 1 on host ended with exit code 7 in: decode steps", "Aborted")


def test_alone_there_is_nobody_to_wait_for():
    ALONE.meet("anything")
    assert ALONE.gather("mine") == ["mine"]
    assert (ALONE.least(7), ALONE.once_a_node(lambda: 8), ALONE.in_turn(lambda: 9, "now")) == (7, 8, 9)


def test_ranks_share_the_processors_and_talk_by_loopback_unless_told_otherwise(monkeypatch):
    monkeypatch.setattr(launch.os, "cpu_count", lambda: 8)
    monkeypatch.setattr(launch.os, "getpid", lambda: 77)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "INFO")
    found = launch._environment(1, 3, 4321)
    assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"], found["LOCAL_WORLD_SIZE"]) == ("1", "1", "3", "3")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"], found["HSPLAN_STARTED_BY"]) == ("127.0.0.1", "4321", "77")
    assert (found["OMP_NUM_THREADS"], "TORCH_CPP_LOG_LEVEL" in found) == ("2", False)


def watched(*codes, done):
    """What comes of ranks with these exit codes, look by look, once the first has said that the run is `done`."""
    store, looks = HashStore(), list(codes)
    if done:
        store.set("done", "")
    processes = SimpleNamespace(codes=lambda: looks.pop(0), tail=lambda _: "")
    return launch._watched(processes, store, 60.0)


@pytest.mark.parametrize("verdict", [0, 1, 5])
def test_the_exit_code_of_a_run_that_is_done_is_that_of_the_first_rank(verdict):
    assert watched([None, None], [None, None], [None, 0], [verdict, 0], done=True) == verdict


def test_a_crash_of_another_rank_after_the_report_was_due_changes_nothing():
    assert watched([None, None], [None, -11], [0, -11], done=True) == 0


@pytest.mark.parametrize(
    ("codes", "what"),
    [
        ([None, -11], "rank 1 was killed by signal 11 (SIGSEGV) in: starting"),
        ([None, 4], "rank 1 ended with exit code 4 in: starting"),
        ([0, 0], "rank 0 ended with exit code 0 in: starting"),
    ],
)
def test_before_that_no_rank_may_end(codes, what):
    with pytest.raises(CannotRunError) as caught:
        watched([None, None], [None, 0], codes, done=False)
    assert told(caught.value)[1] == what
