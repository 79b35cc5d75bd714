"""Ranks side by side: sums, least tokens, memory of a node, and the slowest rank with its reasons, by hand."""

from pathlib import Path

import msgspec
import pytest
from readings import GIB, MACHINE, RUN, WRONG, measurement

from hsplan.measurement import LineCheck, LinkRate, Percentiles, Timing, TokenCheck
from hsplan.ranks import LeastTokens, NodeMemory, Rank, RanksMeasurement, Slowest, combined


def rates(copy, gather):
    """Two ceilings: a copy and a gather."""
    return (
        LinkRate(driver="copy_engine", direction="h2d", gb_s=copy),
        LinkRate(driver="gpu", direction="h2d", gb_s=gather, row_bytes=656, pool_bytes=GIB, rows=4096, order="random"),
    )


def timings(eager_us, graph_us):
    return tuple(
        Timing(
            mode=mode,
            steps=200,
            step_us=Percentiles(us, us, us),
            call_us=Percentiles(us / 78, us / 78, us / 78),
            gb_s=30.0,
            ceiling_gb_s=40.0,
        )
        for mode, us in (("eager", eager_us), ("graph", graph_us))
    )


def found(**changes):
    plain = measurement(
        link=rates(53.0, 20.0),
        lines=(LineCheck(name="host KV pool", place="host", predicted_bytes=20 * GIB, measured_bytes=20 * GIB),),
        tokens=(
            TokenCheck(scenario="elided", kv_budget_bytes=GIB, predicted_tokens=2000, confirmed_tokens=1990),
            TokenCheck(scenario="offload", kv_budget_bytes=GIB, predicted_tokens=1000, confirmed_tokens=1000),
        ),
        timings=timings(11_000.0, 10_000.0),
    )
    return msgspec.structs.replace(plain, **changes)


def rank(number=0, measurement=None, **changes):
    made = Rank(
        rank=number,
        local_rank=number,
        host="a",
        copy_of=0,
        gpu_node=0,
        clock_mhz=1980,
        alone_link=rates(55.0, 25.0),
        alone_timings=timings(0.0, 8000.0)[1:],
        measurement=measurement or found(),
    )
    return msgspec.structs.replace(made, **changes)


def both(second, **changes):
    return combined((rank(0), rank(1, second, **changes)), planned_node_bytes=320 * GIB)


def test_rates_stand_rank_by_rank_and_summed_alone_and_together():
    copy, gather = both(found(link=rates(52.0, 18.0)), alone_link=rates(54.0, 26.0)).link
    assert (copy.driver, copy.pool_bytes, gather.rows, gather.order) == ("copy_engine", None, 4096, "random")
    assert (copy.alone_gb_s, copy.alone_sum_gb_s) == ((55.0, 54.0), 109.0)
    assert (copy.together_gb_s, copy.together_sum_gb_s) == ((53.0, 52.0), 105.0)
    assert (gather.alone_sum_gb_s, gather.together_sum_gb_s) == (51.0, 38.0)


def test_the_tokens_of_the_run_are_those_of_the_rank_that_holds_least():
    second = found(
        tokens=(
            TokenCheck(scenario="elided", kv_budget_bytes=GIB, predicted_tokens=1950, confirmed_tokens=1940),
            TokenCheck(scenario="offload", kv_budget_bytes=GIB, predicted_tokens=1001, confirmed_tokens=1001),
        )
    )
    elided, offload = both(second).tokens
    assert (elided.scenario, elided.rank, elided.predicted_tokens, elided.confirmed_tokens) == ("elided", 1, 1950, 1940)
    assert (offload.rank, offload.predicted_tokens, offload.confirmed_tokens) == (0, 1000, 1000)


def test_host_memory_is_counted_for_each_machine():
    ranks = (rank(0), rank(1), rank(2, local_rank=0, host="b"), rank(3, local_rank=1, host="b"))
    nodes = combined(ranks, planned_node_bytes=320 * GIB).nodes
    each = {"ranks": 2, "rank_bytes": 20 * GIB, "pool_bytes": 40 * GIB, "granted_bytes": 192 * GIB}
    assert nodes == tuple(NodeMemory(host=host, planned_bytes=320 * GIB, **each) for host in ("a", "b"))


def test_two_machines_of_one_name_are_two():
    assert len(combined((rank(0), rank(1, local_rank=0)), planned_node_bytes=0).nodes) == 2


def test_on_the_interpreter_the_pools_are_those_that_were_run_and_nothing_is_granted():
    machine = msgspec.structs.replace(MACHINE, gpu="interpreter", memory_bytes=None, host_bytes=None)
    (node,) = combined((rank(0, found(machine=machine)),), planned_node_bytes=0).nodes
    assert (node.pool_bytes, node.granted_bytes) == (24 * GIB, None)


def slowest(second, **changes):
    return both(second, **changes).slowest


def test_the_slowest_rank_is_that_of_the_longest_step_by_graph_replay():
    one = slowest(found(timings=timings(1.0, 12_000.0)))
    assert (one.rank, one.step_us, one.fastest_rank, one.fastest_us) == (1, 12_000.0, 0, 10_000.0)
    assert one.differs
    assert slowest(found(timings=timings(99_000.0, 9000.0))).rank == 0


def test_ranks_within_2_percent_need_no_reason():
    one = slowest(found(timings=timings(1.0, 10_200.0), link=rates(10.0, 10.0)))
    assert (one.differs, one.reasons) == (False, ())


SLOW = {"timings": timings(1.0, 12_000.0)}


@pytest.mark.parametrize(
    ("measured", "told", "reasons"),
    [
        ({}, {}, ()),
        (
            {"run": msgspec.structs.replace(RUN, rows_loaded=102_001)},
            {},
            ("it loaded 102,001 rows in the checked steps, not 100,000",),
        ),
        ({"run": msgspec.structs.replace(RUN, rows_loaded=102_000)}, {}, ()),
        ({"link": rates(40.0, 20.0)}, {}, ("its link copies 40.0 GB/s with all ranks at once, not 53.0",)),
        ({}, {"alone_link": rates(27.5, 25.0)}, ("its link copies 27.5 GB/s alone, not 55.0",)),
        (
            {"machine": msgspec.structs.replace(MACHINE, link_width=8)},
            {},
            ("its link is PCIe 5 x8, not 5 x16",),
        ),
        ({}, {"gpu_node": 1}, ("its card is at NUMA node 1, not 0",)),
        ({}, {"clock_mhz": 1200}, ("its card runs at 1,200 MHz, not 1,980",)),
        ({}, {"clock_mhz": None}, ()),
        ({}, {"host": "b"}, ("it is on b, not on a",)),
    ],
)
def test_reasons_are_figures_in_which_the_slowest_is_behind(measured, told, reasons):
    assert slowest(found(**SLOW, **measured), **told).reasons == reasons


def test_a_single_rank_is_not_slower_than_others():
    assert combined((rank(0),), planned_node_bytes=0).slowest is None


def test_without_times_no_rank_is_slow():
    assert slowest(found(timings=())) is None


def test_a_claim_that_fails_on_one_rank_fails_the_run_and_is_named():
    result = both(found(checks=(WRONG,)))
    assert result.failed == ((1, WRONG),)
    assert result.to_dict()["passed"] is False
    assert both(found()).failed == ()


def test_the_fault_is_that_of_the_last_rank():
    result = both(found(injected="short-pool", caught=True))
    assert (result.injected, result.caught) == ("short-pool", True)


def test_the_guide_names_every_key():
    guide = (Path(__file__).resolve().parents[2] / "docs/ranks.md").read_text("utf-8")
    shared = ("alone_gb_s", "together_gb_s")
    keys = [
        name for kind in (RanksMeasurement, Rank, NodeMemory, LeastTokens, Slowest) for name in kind.__struct_fields__
    ]
    assert [name for name in (*keys, *shared) if f"`{name}`" not in guide and f"`{name}[]`" not in guide] == []


def test_plain_data_has_these_keys_in_this_order():
    data = both(found()).to_dict()
    assert list(data) == [
        "schema",
        "hsplan_version",
        "passed",
        "name",
        "scenario",
        "injected",
        "caught",
        "ranks",
        "nodes",
        "tokens",
        "link",
        "slowest",
    ]
    assert (data["schema"], data["passed"]) == ("hsplan.ranks/1", True)
    assert list(data["ranks"][0]) == [
        "rank",
        "local_rank",
        "host",
        "copy_of",
        "gpu_node",
        "clock_mhz",
        "alone_link",
        "alone_timings",
        "measurement",
    ]
    assert data["ranks"][1]["measurement"]["run"]["rows_loaded"] == 100_000
    assert list(data["nodes"][0]) == ["host", "ranks", "rank_bytes", "pool_bytes", "granted_bytes", "planned_bytes"]
    assert list(data["slowest"]) == ["rank", "step_us", "fastest_rank", "fastest_us", "reasons"]
