"""One rank of a test, as a program: a FOLDER for its notes, what to do, and seconds of silence that are too long."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch

from hsplan.errors import CannotRunError, HsplanError, Problem
from hsplan.gpu.join import join
from hsplan.gpu.seat import end_with, seat_of


def main(folder, do, silence_s):
    seat = seat_of(os.environ, None)
    end_with(seat.started_by)
    (folder / f"pid.{seat.rank}").write_text(str(os.getpid()))
    try:
        with join(seat, gpu=False, silence_s=silence_s) as group:
            group.report(lambda *_: None)("the first stage", 0, 1)
            group.meet()
            (folder / f"joined.{seat.rank}").touch()
            DO[do](group, folder)
    except HsplanError as error:
        if seat.started_by is None:
            sys.stderr.write("\n".join([*error.lines(), ""]))
        sys.exit(error.exit_code)


def talk(group, folder):
    turns = []
    said = {
        "gathered": group.gather(f"I am {group.rank}"),
        "least": group.least(10 - group.rank),
        "once": group.once_a_node(lambda: 40 + group.rank),
        "none": group.once_a_node(lambda: None),
        "turn": group.in_turn(lambda: turns.append(time.monotonic()) or time.sleep(0.1) or time.monotonic(), "turns"),
        "tensors": group.all_tensors(torch.tensor([group.rank, 7])).tolist(),
    }
    said["turn"] = [turns[0], said["turn"]]
    (folder / f"said.{group.rank}").write_text(json.dumps(said))


def last(act):
    """The last rank acts, the others wait for it."""

    def do(group, folder):
        del folder
        if group.rank == group.size - 1:
            act()
        group.meet("what comes next")

    return do


def raises(error):
    def act():
        raise error

    return act


def deaf(group, folder):
    del group, folder
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(100)


DO = {
    "talk": talk,
    "killed": last(lambda: os.kill(os.getpid(), signal.SIGKILL)),
    "stopped": last(lambda: os.kill(os.getpid(), signal.SIGSTOP)),
    "cannot": last(raises(CannotRunError(Problem(what="the card is on fire", remedy="use a bucket")))),
    "deaf": deaf,
}

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], float(sys.argv[3]))
