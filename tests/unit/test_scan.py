"""A log as bytes: its lines of interest are found whatever stands around them, and nothing else is."""

from __future__ import annotations

import io
import json
import time

import pytest

from hsplan import InputError
from hsplan.calibrate import scan
from hsplan.calibrate.log import Log, log_of
from hsplan.calibrate.scan import lines_of

TOKENS = (
    "max_total_num_tokens=142208, chunked_prefill_size=8192, max_prefill_tokens=16384, max_running_requests=2048, "
    "context_len=202752, available_gpu_mem=36.00 GB"
)
PREFIX = "[2026-11-01 10:00:09 DP0 TP3] "
BLOCKS = "GPU KV cache size: 249,599 tokens, Maximum concurrency for 202,752 tokens per request: 1.23x"


def read(text: str | bytes) -> Log:
    data = text.encode() if isinstance(text, str) else text
    return log_of(lines_of(io.BytesIO(data)), "log")


@pytest.mark.parametrize(
    "line",
    [
        TOKENS,
        PREFIX + TOKENS,
        PREFIX + TOKENS + "\r",
        "sglang-1  | " + PREFIX + TOKENS,
        "2026-11-01T10:00:09.123456789Z stdout F " + PREFIX + TOKENS,
        "\x1b[32m" + PREFIX + "\x1b[0m" + TOKENS,
        "#033[36m" + PREFIX + "#033[0m" + TOKENS,
        "^[[36m" + PREFIX + "^[[0;0m" + TOKENS,
        "Loading: 50%|####\rLoading: 100%|########|\r" + PREFIX + TOKENS,
        json.dumps({"log": PREFIX + TOKENS + "\n", "stream": "stderr"}),
        json.dumps({"time": 1, "jsonPayload": {"message": "\x1b[32m" + PREFIX + TOKENS}}),
        "2026-11-01T10:00:09Z pod-7 " + json.dumps({"msg": PREFIX + TOKENS}),
        '{"half": ' + PREFIX + TOKENS + "}",
    ],
)
def test_a_line_is_read_whatever_wraps_it(line: str):
    found = read(f"first\n{line}\nlast")
    assert found.engine == "sglang"
    assert found.texts("tokens") == ("142208",)
    assert found.texts("context") == ("202752",)


def test_ranks_that_print_side_by_side_are_counted_and_their_figures_kept_once():
    lines = [f"[x TP{rank}] Load weight begin. avail mem={138 + rank % 2 / 100:.2f} GB" for rank in range(8)]
    found = read("\n".join(lines))
    assert found.ranks == 8
    assert found.texts("free_before") == ("138.00", "138.01")
    low, high = found.window("free_before").low / 2**30, found.window("free_before").high / 2**30
    assert (round(low, 3), round(high, 3)) == (137.995, 138.015)
    assert round(found.least("free_before").high / 2**30, 3) == 138.005


def test_the_last_start_of_a_log_counts():
    line = "[x] max_total_num_tokens={}, max_running_requests=1, context_len=9\n"
    start = "[x] server_args=ServerArgs(mem_fraction_static={})\n" + line
    found = read(start.format(0.7, 64) + start.format(0.8, 128))
    assert (found.texts("tokens"), found.texts("fraction"), found.starts) == (("128",), ("0.8",), 2)


def test_what_a_request_says_after_the_start_is_not_read():
    found = read(
        f"{PREFIX}{TOKENS}\n[x] The server is fired up and ready to roll!\n[x] prompt: {TOKENS.replace('142', '999')}"
    )
    assert found.texts("tokens") == ("142208",)


@pytest.mark.parametrize(
    "text", ["", "nothing here\n", "\0" * 1000, b"\xff\xfe\n" * 100, "{" * 100_000, "x" * 3_000_000]
)
def test_a_log_without_start_up_lines_is_refused_in_one_line(text: str | bytes):
    with pytest.raises(InputError, match="log: has no start-up line of SGLang or vLLM"):
        read(text)


def test_a_log_of_two_engines_is_refused():
    with pytest.raises(InputError, match="of both SGLang and vLLM"):
        read(f"{PREFIX}{TOKENS}\n(EngineCore pid=7) INFO 11-01 10:00:00 [kv.py:1] {BLOCKS}")


@pytest.mark.parametrize("chunk", [1, 7, 64, 300])
def test_a_line_may_lie_across_chunks(monkeypatch: pytest.MonkeyPatch, chunk: int):
    monkeypatch.setattr(scan, "CHUNK_BYTES", chunk)
    assert read(f"{'y' * 150}\n{TOKENS}\n{'z' * 150}").texts("tokens") == ("142208",)


def test_a_line_of_megabytes_is_read_around_its_figures():
    assert read("x" * 3_000_000 + " " + TOKENS + "y" * 3_000_000).texts("tokens") == ("142208",)


def test_100_mb_take_less_than_a_second():
    busy = b"[x TP0] Decode batch, #running-req: 64, #token: 131072, token usage: 0.92, gen throughput: 2412\n"
    log = TOKENS.encode() + b"\n" + busy * (50 * 10**6 // len(busy))
    took = []
    for _ in range(3):
        begin = time.process_time()
        assert log_of(lines_of(io.BytesIO(log)), "log").texts("tokens") == ("142208",)
        took.append(time.process_time() - begin)
    assert min(took) < 0.5


def test_a_deeply_nested_line_of_json_is_read_as_it_stands():
    assert read('{"a":' * 20_000 + f'" {TOKENS}"' + "}" * 20_000).texts("tokens") in ((), ("142208",))
