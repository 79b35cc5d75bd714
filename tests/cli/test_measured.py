"""A measurement of a card as text: each table, with the figures that a reader would work out."""

import msgspec
import pytest
from readings import GIB, MACHINE, WRONG, measurement

import hsplan
from hsplan.cli.measured import measured
from hsplan.measurement import LineCheck, LinkRate, Percentiles, Timing, TokenCheck

FOUND = measurement(
    machine=msgspec.structs.replace(
        MACHINE, warnings=("memlock is 8.00 MiB, the host pool wants 96.00 GiB: see ulimit -l.",)
    ),
    scaled=("pools of 62,080 device tokens instead of 64,000: host memory is smaller than planned",),
    link=(
        LinkRate(driver="copy_engine", direction="d2h", gb_s=55.25),
        LinkRate(
            driver="gpu", direction="h2d", gb_s=40.0, row_bytes=656, pool_bytes=4 * GIB, rows=16384, order="random"
        ),
    ),
    lines=(LineCheck(name="KV rows", place="gpu", predicted_bytes=5_000_000, measured_bytes=5_000_192),),
    tokens=(
        TokenCheck(
            scenario="elided", kv_budget_bytes=139 * GIB, predicted_tokens=2_000_000, confirmed_tokens=1_999_000
        ),
    ),
    timings=(
        Timing(
            mode="graph, backup",
            steps=200,
            step_us=Percentiles(12_340.0, 13_000.0, 20_005.0),
            call_us=Percentiles(158.2, 166.7, 256.5),
            gb_s=30.0,
            ceiling_gb_s=40.0,
        ),
    ),
    checks=(WRONG,),
    not_checked=("weights: a placeholder of their size",),
)


@pytest.fixture(scope="module")
def text():
    return measured(hsplan.plan("glm-5.2-fp8"), FOUND)


def row(text, first):
    """The cells of the line that begins with `first`."""
    (line,) = [line for line in text.splitlines() if line.startswith(first)]
    return [cell for cell in line.split("  ") if cell.strip()]


def test_the_head_says_where_it_ran(text):
    assert text.startswith(
        "my-glm: sglang 0.5.23, elided+offload, on NVIDIA H200 (140.00 GiB, PCIe 5 x16, driver 580.1), torch"
    )


def test_the_run_is_told_with_its_sizes_and_its_hits(text):
    words = " ".join(text.split())
    assert "run: 1,000 steps, 15 requests of 32,768 tokens, 78 layers, 21 of them with top-k 2,048," in words
    assert "rows of 656 B, hot buffers of 4,096, 24.00 GiB in host memory, 86.6 % of the top-k hit" in words


def test_what_was_scaled_warned_of_and_not_checked_has_a_line(text):
    assert "\nscaled: pools of 62,080 device tokens instead of 64,000: " in text
    assert "\nwarning: memlock is 8.00 MiB, " in text
    assert "\nnot checked: weights: a placeholder of their size\n" in text


def test_a_ledger_line_has_its_difference(text):
    assert [cell.strip() for cell in row(text, "KV rows")] == ["KV rows", "gpu", "5,000,000", "5,000,192", "192"]


def test_tokens_are_off_by_a_share(text):
    cells = [cell.strip() for cell in row(text, "elided")]
    assert cells == ["elided", "139.00", "2,000,000", "1,999,000", "-0.050 %"]


def test_ceilings_of_the_link_have_their_pool_and_rows(text):
    assert [cell.strip() for cell in row(text, "copy engine")][-1] == "55.2"
    assert [cell.strip() for cell in row(text, "kernel, host to GPU")] == [
        "kernel, host to GPU", "random", "4.00", "16,384", "40.0",
    ]  # fmt: skip


def test_a_swap_in_has_milliseconds_a_step_microseconds_a_call_and_its_share(text):
    assert [cell.strip() for cell in row(text, "graph, backup")] == [
        "graph, backup", "12.34", "13.00", "20.00", "158.2", "166.7", "256.5", "30.0", "75 %",
    ]  # fmt: skip


def test_a_claim_that_fails_is_named_with_its_claim(text):
    assert [cell.strip() for cell in row(text, "rows  ")] == ["rows", "FAILS", "3 rows are wrong"]
    assert "\nrows fails: the claim is that they are right\n" in text
    assert text.splitlines()[-1] == "1 of 1 claims fail on NVIDIA H200"


def test_no_line_is_wider_than_100_columns(text):
    assert max(map(len, text.splitlines())) <= 100
