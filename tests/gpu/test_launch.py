"""
Ranks as processes on this machine: what they tell each other, and that none is waited for in vain or left behind.

The ranks are `rank_of_a_test.py`, started by `launch` or by torchrun, which does what it is told.
"""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hsplan.errors import CannotRunError
from hsplan.gpu.join import join
from hsplan.gpu.launch import launch
from hsplan.gpu.seat import Seat

SCRIPT = Path(__file__).with_name("rank_of_a_test.py")
LONG_S = 60.0


class Ranks:
    """Two ranks of a test: how to start them, and whether they still run."""

    def __init__(self, folder):
        self.folder = folder

    def command(self, do, silence_s=LONG_S):
        return [sys.executable, str(SCRIPT), str(self.folder), do, str(silence_s)]

    def launch(self, do, silence_s=LONG_S, **options):
        return launch(self.command(do, silence_s), 2, silence_s=silence_s, **options)

    def pid(self, rank):
        return int((self.folder / f"pid.{rank}").read_text())

    def said(self, rank):
        return json.loads((self.folder / f"said.{rank}").read_text())

    def wait(self):
        """Until both have met."""
        until = time.monotonic() + LONG_S
        while not all((self.folder / f"joined.{rank}").exists() for rank in range(2)):
            assert time.monotonic() < until, "the ranks never met"
            time.sleep(0.05)

    def gone(self):
        """Whether neither runs any more, now or within a few seconds."""
        until = time.monotonic() + 5
        while alive := [rank for rank in range(2) if runs(self.pid(rank))]:
            if time.monotonic() > until:
                break
            time.sleep(0.05)
        return not alive


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("nowhere.invalid", "does not reach the place where the ranks meet, nowhere.invalid:"),
        ("192.0.2.1", "does not reach the place where the ranks meet, 192.0.2.1:"),
    ],
)
def test_a_place_that_is_out_of_reach_is_named(monkeypatch, address, what):
    monkeypatch.setattr("hsplan.gpu.join.CONNECT_S", 1.0)
    seat = Seat(rank=1, size=2, local_rank=0, local_size=1, address=address, port=29_517)
    for name, value in {"RANK": 1, "WORLD_SIZE": 2, "MASTER_ADDR": address, "MASTER_PORT": 29_517}.items():
        monkeypatch.setenv(name, str(value))
    with pytest.raises(CannotRunError) as caught, join(seat, gpu=False, silence_s=LONG_S):
        pass
    assert caught.value.problems[0].where == "MASTER_ADDR"
    assert f"rank 1 {what}29517" in caught.value.problems[0].what


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def ranks(tmp_path):
    found = Ranks(tmp_path)
    yield found
    for path in tmp_path.glob("pid.*"):  # whatever a test has found, nothing is left
        if runs(int(path.read_text())):
            os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.fixture
def apart(ranks):
    """Start a process that launches two ranks, so that it can be ended."""
    started = []

    def start(do):
        script = (
            "import sys; from hsplan.gpu.launch import launch\n"
            "try: sys.exit(launch(sys.argv[1:], 2, silence_s=60, grace_s=1))\n"
            "except KeyboardInterrupt: sys.exit(130)\n"
        )
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, "-c", script, *ranks.command(do)]
        started.append(subprocess.Popen(command, env=env))
        ranks.wait()
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def failure(ranks, do, **options):
    with pytest.raises(CannotRunError) as caught:
        ranks.launch(do, **options)
    assert caught.value.exit_code == 4
    assert ranks.gone()
    (problem,) = caught.value.problems
    return problem


def test_ranks_tell_each_other_figures_and_tensors_and_take_turns(ranks):
    assert ranks.launch("talk") == 0
    first, second = ranks.said(0), ranks.said(1)
    for said in (first, second):
        assert said["gathered"] == ["I am 0", "I am 1"]
        assert (said["least"], said["once"], said["none"]) == (9, 40, None)
        assert said["tensors"] == [[0, 7], [1, 7]]
    assert first["turn"][1] <= second["turn"][0]  # the second began when the first had ended
    assert ranks.gone()


def test_a_killed_rank_ends_the_run_with_its_name_its_signal_and_what_it_was_at(ranks):
    problem = failure(ranks, "killed")
    assert problem.what.startswith("rank 1 on ")
    assert problem.what.endswith(" was killed by signal 9 (SIGKILL) in: the first stage")
    assert problem.remedy == "a machine that is out of memory does so, see dmesg: give less --host-memory"


def test_a_rank_that_hangs_ends_the_run_with_its_name_and_what_it_was_at(ranks):
    problem = failure(ranks, "stopped", silence_s=2.0, grace_s=2.0)
    assert re.fullmatch(r"rank 1 on .* has given no sign of life for \d+ s, since: the first stage", problem.what)


def test_a_rank_that_cannot_go_on_says_why_itself(ranks):
    problem = failure(ranks, "cannot")
    assert problem.where.startswith("rank 1 on ")
    assert (problem.what, problem.remedy) == ("the card is on fire", "use a bucket")


def test_ctrl_c_ends_all_ranks_those_that_do_not_listen_too(ranks, apart):
    running = apart("deaf")
    running.send_signal(signal.SIGINT)
    assert running.wait(timeout=LONG_S) == 130
    assert ranks.gone()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel of Linux ends the ranks")
def test_ranks_end_when_the_process_that_started_them_is_killed(ranks, apart):
    running = apart("deaf")
    running.kill()
    running.wait()
    assert ranks.gone()


def torchrun(ranks, do, silence_s=LONG_S):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        [*command, *ranks.command(do, silence_s)[1:]], env=env, stderr=subprocess.PIPE, text=True
    )  # fmt: skip


def test_under_torchrun_a_killed_rank_ends_the_run_with_its_name(ranks):
    with torchrun(ranks, "killed") as running:
        _, err = running.communicate(timeout=LONG_S)
    assert running.returncode == 1  # torchrun's own, whatever a rank returns
    assert "Signal 9 (SIGKILL)" in err
    assert "rank      : 1" in err
    assert ranks.gone()


def test_under_torchrun_those_that_wait_name_the_rank_that_hangs(ranks):
    with torchrun(ranks, "stopped", silence_s=2.0) as running:
        line = next(line for line in running.stderr if "sign of life" in line)
        os.kill(ranks.pid(1), signal.SIGCONT)  # else torchrun waits half a minute before it kills it
        running.communicate(timeout=LONG_S)
    assert line.startswith("rank 1 on ")
    assert ", since: the first stage" in line
    assert running.returncode == 1
    assert ranks.gone()
