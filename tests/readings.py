"""A measurement of one card, written out by hand: what a test changes is seen in the test."""

from __future__ import annotations

from typing import Any

import msgspec

from hsplan.measurement import Check, Machine, Measurement, Run

GIB = 2**30
MACHINE = Machine(
    gpu="NVIDIA H200",
    memory_bytes=140 * GIB,
    free_bytes=139 * GIB,
    driver="580.1",
    torch="2.11.0",
    triton="3.6.0",
    link_generation=5,
    link_width=16,
    host_bytes=96 * GIB,
)
INTERPRETER = Machine(
    gpu="interpreter",
    memory_bytes=None,
    free_bytes=None,
    driver=None,
    torch="2.13.0",
    triton="3.9.0",
    link_generation=None,
    link_width=None,
    host_bytes=None,
)
RUN = Run(
    steps=1000,
    requests=15,
    context=32_768,
    layers=78,
    owners=21,
    row_bytes=656,
    top_k=2048,
    slots=4096,
    host_bytes=24 * GIB,
    rows_checked=1000,
    rows_loaded=100_000,
    miss_share=0.134,
)
RIGHT = Check(name="rows", claim="they are right", passed=True, detail="1,000 rows")
WRONG = Check(name="rows", claim="they are right", passed=False, detail="3 rows are wrong")


def measurement(**changes: Any) -> Measurement:
    """One that found its rows right, without link, tokens and times."""
    plain = Measurement(
        name="my-glm",
        scenario="elided+offload",
        injected=None,
        caught=None,
        machine=MACHINE,
        scaled=(),
        link=(),
        lines=(),
        tokens=(),
        run=RUN,
        timings=(),
        checks=(RIGHT,),
        not_checked=(),
    )
    return msgspec.structs.replace(plain, **changes)
