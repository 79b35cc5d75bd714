"""
Known faults that a validation must find, each by name.

A fault is put in where its effect shows: in what a kernel is given, in what it leaves, or in a size. Each is caught by
the check that is named beside it; a fault that is not caught is a bug of hsplan.
"""

from __future__ import annotations

from typing import Literal, get_args

Fault = Literal[
    "missing-wait",
    "int32-offsets",
    "elided-layer-written",
    "eviction-order",
    "truncated-row",
    "short-pool",
    "ledger-formula",
]
FAULTS: tuple[Fault, ...] = get_args(Fault)

CAUGHT_BY: dict[Fault, str] = {
    "missing-wait": "rows",  # a load does not wait for the backup of its row
    "int32-offsets": "64-bit offsets",  # byte offsets wrap at 2^31
    "elided-layer-written": "index-K",  # a skip-TopK layer writes to its owner's index keys
    "eviction-order": "eviction order",  # the oldest slot is taken for the newest
    "truncated-row": "rows",  # the last 16 bytes of a row are not copied
    "short-pool": "pool rows",  # every pool lacks its last page
    "ledger-formula": "ledger",  # the KV rows of one layer are not counted
}
