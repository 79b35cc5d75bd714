"""Ranks as text: side by side, what they share, and verdicts that name the rank."""

import msgspec
import pytest
from readings import GIB, MACHINE, RIGHT, RUN, WRONG, measurement

import hsplan
from hsplan.cli.ranked import ranked
from hsplan.measurement import Check, Percentiles, Timing
from hsplan.ranks import LeastTokens, NodeMemory, Rank, RanksMeasurement, SharedRate, Slowest


def timing(us):
    times = Percentiles(us, us, us)
    return (Timing(mode="graph", steps=50, step_us=times, call_us=times, gb_s=30.0, ceiling_gb_s=40.0),)


def rank(number, *, check=RIGHT, alone_us=9000.0, together_us=11_000.0, rows=100_000):
    return Rank(
        rank=number,
        local_rank=number,
        host="node0",
        copy_of=0,
        gpu_node=None if number else 0,
        clock_mhz=1980,
        alone_link=(),
        alone_timings=timing(alone_us),
        measurement=measurement(
            machine=msgspec.structs.replace(MACHINE, warnings=("memlock is 8.00 MiB",)),
            scaled=("pools of 62,080 device tokens instead of 64,000",),
            run=msgspec.structs.replace(RUN, rows_loaded=rows),
            timings=timing(together_us),
            checks=(check, Check(name="misses", claim="as many", passed=True, detail=f"{rows:,} rows loaded")),
            not_checked=("weights: a placeholder",),
        ),
    )


FOUND = RanksMeasurement(
    name="my-glm",
    scenario="elided+offload",
    injected=None,
    caught=None,
    ranks=(rank(0), rank(1, together_us=12_340.0, rows=102_500)),
    nodes=(
        NodeMemory(
            host="node0",
            ranks=2,
            rank_bytes=36 * GIB,
            pool_bytes=72 * GIB,
            granted_bytes=None,
            planned_bytes=288 * GIB,
        ),
    ),
    tokens=(LeastTokens(scenario="elided", rank=1, predicted_tokens=2_000_000, confirmed_tokens=1_999_000),),
    link=(
        SharedRate(
            driver="copy_engine",
            direction="h2d",
            row_bytes=None,
            pool_bytes=None,
            rows=None,
            order=None,
            alone_gb_s=(55.5, 55.25),
            together_gb_s=(53.0, 52.5),
            alone_sum_gb_s=110.75,
            together_sum_gb_s=105.5,
        ),
    ),
    slowest=Slowest(
        rank=1,
        step_us=12_340.0,
        fastest_rank=0,
        fastest_us=11_000.0,
        reasons=("it loaded 102,500 rows in the checked steps, not 100,000", "it is late"),
    ),
)


def text(**changes):
    return ranked(hsplan.plan("glm-5.2-fp8"), msgspec.structs.replace(FOUND, **changes))


def row(first, **changes):
    """The cells of the line that begins with `first`."""
    (line,) = [line for line in text(**changes).splitlines() if line.startswith(first)]
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_the_head_counts_ranks_and_machines_and_says_once_what_is_the_same():
    words = " ".join(text().split())
    assert words.startswith(
        "my-glm: sglang 0.5.23, elided+offload, 2 ranks on 1 machine, on NVIDIA H200 (140.00 GiB, PCIe 5 x16, "
    )
    assert "each rank: 1,000 steps, 15 requests of 32,768 tokens, 78 layers, 21 of them with top-k 2,048" in words
    for once in ("scaled: pools of 62,080", "warning: memlock is", "not checked: weights"):
        assert words.count(once) == 1


def test_one_request_is_no_plural():
    one = msgspec.structs.replace(rank(0).measurement, run=msgspec.structs.replace(rank(0).measurement.run, requests=1))
    ranks = (msgspec.structs.replace(rank(0), measurement=one),)
    assert "1,000 steps, 1 request of 32,768 tokens" in " ".join(text(ranks=ranks, link=()).split())


def test_ranks_stand_side_by_side_with_their_steps_alone_and_together():
    assert row("   0  ") == ["0", "node0", "0", "its own", "100,000", "13.4 %", "9.00", "11.00", "30.0"]
    assert row("   1  ") == ["1", "node0", "–", "as rank 0", "102,500", "13.4 %", "9.00", "12.34", "30.0"]


def test_tokens_are_the_least_of_all_ranks_and_name_the_rank():
    assert row("elided  ") == ["elided", "2,000,000", "1,999,000", "1"]


def test_host_memory_stands_a_rank_and_a_node():
    assert row("node0") == ["node0", "2", "36.00 GiB", "72.00 GiB", "–", "288.00 GiB"]


def test_the_link_has_its_least_rank_and_its_sum_alone_and_together():
    assert row("copy engine") == ["copy engine, host to GPU", "–", "–", "–", "55.2", "110.8", "52.5", "105.5"]


COPIES = "GB/s, copy engine, host to GPU, all"


def test_the_sum_that_host_gb_s_takes_is_said_for_a_node_of_as_many_gpus():
    words = " ".join(ranked(hsplan.plan("glm-5.2-fp8", tp=2, gpu="b300"), FOUND).split())
    assert f"--host-gb-s: 105.5 {COPIES} 2 GPUs of a node at once" in words
    assert "not for this plan" not in words


def test_a_sum_of_fewer_gpus_than_a_node_has_is_said_to_be_no_figure_for_the_plan():
    assert f"105.5 {COPIES} 2 GPUs of a node at once; not for this plan, which has 8 GPUs a node" in " ".join(
        text().split()
    )


def test_of_several_nodes_the_poorest_is_meant_and_not_the_sum_of_all():
    ranks = (rank(0), msgspec.structs.replace(rank(1), host="node1"))
    assert f"--host-gb-s: 52.5 {COPIES} 1 GPU of a node" in " ".join(text(ranks=ranks).split())


def test_a_claim_that_holds_is_told_once_or_rank_by_rank_where_they_differ():
    assert row("rows  ") == ["rows", "holds", "each of 2 ranks: 1,000 rows"]
    assert row("misses") == ["misses", "holds", "rank 0: 100,000 rows loaded; rank 1: 102,500 rows loaded"]
    assert text().splitlines()[-1] == "all 2 claims hold on each of 2 ranks"


def test_a_claim_that_fails_names_its_rank_alone():
    ranks = (rank(0), rank(1, check=WRONG))
    assert row("rows  ", ranks=ranks) == ["rows", "FAILS", "rank 1: 3 rows are wrong"]
    assert "\nrank 1: rows fails: the claim is that they are right\n" in text(ranks=ranks)
    assert text(ranks=ranks).splitlines()[-1] == "1 of 2 claims fail on rank 1 of 2 ranks"


def test_the_slowest_rank_is_named_with_the_figures_that_say_why():
    words = " ".join(text().split())
    reasons = "it loaded 102,500 rows in the checked steps, not 100,000; it is late"
    assert f"slowest: rank 1, 12.34 ms a step, rank 0 11.00 ms: {reasons}" in words


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"reasons": ()}, "rank 0 11.00 ms: no figure measured here says why"),
        ({"step_us": 11_220.0, "reasons": ()}, "slowest: no rank is more than 2 % behind another"),
    ],
)
def test_a_rank_without_a_reason_gets_none(changes, words):
    assert words in text(slowest=msgspec.structs.replace(FOUND.slowest, **changes))


def test_a_fault_is_told_with_the_rank_that_has_it():
    assert text(injected="short-pool", caught=True).splitlines()[-1] == "injected short-pool into rank 1: caught"
    assert text(injected="short-pool", caught=False).splitlines()[-1] == "injected short-pool into rank 1: NOT CAUGHT"


def test_without_times_and_cards_their_tables_are_left_out():
    words = text(link=(), tokens=(), slowest=None)
    assert "host link" not in words
    assert "--host-gb-s" not in words
    assert "least of all ranks" not in words
    assert "slowest" not in words


def test_no_line_is_wider_than_100_columns():
    assert max(map(len, text().splitlines())) <= 100
