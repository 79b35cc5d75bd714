"""The exchange experiment at its smallest: it brings every rank the right rows, and its kernel writes to all ranks."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "exchange.py"
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="the kernels are compiled for the GPU here")


@pytest.fixture(scope="module")
def exchange():
    """The script as a module."""
    before = dict(os.environ)
    spec = importlib.util.spec_from_file_location("exchange", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in set(os.environ) - set(before):
        del os.environ[name]
    return module


def test_two_ranks_get_the_right_rows_in_every_way(tmp_path):
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, str(SCRIPT), "--tiny", "-o", str(tmp_path / "exchange.json")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    data = json.loads((tmp_path / "exchange.json").read_bytes())
    assert (data["ranks"], data["machine"]["gpus"]) == (2, ["interpreter", "interpreter"])
    cells = [(cell["row_bytes"], cell["rows"], cell["wrong_rows"]) for cell in data["cells"]]
    assert cells == [(576, 4, 0), (576, 10, 0)]
    assert set(data["cells"][0]["us"]) == {"alone", "together", "exchange"}
    assert [(entry["row_bytes"], entry["pool_bytes"]) for entry in data["break_even_rows"]["exchange"]] == [
        (576, 36_864)
    ]
    assert data["without_push"] == "not asked for"


@pytest.mark.parametrize("first", [0, 1, 3])
def test_a_row_is_written_to_the_buffers_of_all_ranks_and_nothing_else_is(exchange, noise, first):
    host = noise(40, 48, seed=1)
    buffers = [torch.full((8, 48), 7, dtype=torch.uint8) for _ in range(2)]
    rows = torch.tensor([39, -1, 0, 40])
    table = torch.tensor([buffer.data_ptr() for buffer in buffers])
    exchange._push[(2,)](host.view(torch.int64), table, rows, 4, first, 40, RANKS=2, UNITS=3, TILE=8)
    wanted = torch.full((8, 48), 7, dtype=torch.uint8)
    wanted[first], wanted[first + 2] = host[39], host[0]
    assert all(torch.equal(buffer, wanted) for buffer in buffers)


def cells(*gains):
    return [
        {"row_bytes": 656, "pool_bytes": 1, "rows": rows, "gain": {"exchange": gain}}
        for rows, gain in zip((16, 64, 256), gains, strict=True)
    ]


@pytest.mark.parametrize(
    ("gains", "rows"),
    [((0.5, 1.2, 1.8), 64), ((1.1, 1.2, 1.8), 16), ((1.1, 0.9, 1.8), 256), ((0.5, 0.6, 1.0), None)],
)
def test_the_break_even_is_where_the_exchange_is_faster_from_then_on(exchange, gains, rows):
    assert exchange.break_even(cells(*gains), "exchange") == [{"row_bytes": 656, "pool_bytes": 1, "rows": rows}]
