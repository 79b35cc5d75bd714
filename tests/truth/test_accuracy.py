"""The accuracy page is what the code gives, and leaves no record out."""

from __future__ import annotations

import re

import accuracy
import pytest
import test_engine_logs as sglang
import test_vllm_logs as vllm


def test_the_committed_page_is_what_the_code_gives():
    assert accuracy.PAGE.read_text("utf-8") == accuracy.page(), "run `python tests/truth/accuracy.py`"


def test_every_record_stands_on_the_page():
    text = accuracy.page()
    for name in {**sglang.RECORDS, **vllm.RECORDS}:
        assert re.search(rf"(?:\[|\| |\* ){re.escape(name)}[\]:| ]", text), name


def test_throughputs_stand_with_both_sources_which_differ():
    rows = re.findall(r"\| (paper|chart)[^|]+\| ([0-9,]+) \| [^|]+\| ([0-9,]+) \| (.+?) \|", accuracy.page())
    assert rows == [
        ("paper", "4,096", "2,280", "-1 %"),
        ("paper", "40,960", "1,919", "-20 %"),
        ("paper", "160,000", "680", "+0 %"),
        ("chart", "40,960", "2,640", "-42 %"),
    ]


@pytest.mark.parametrize(
    ("what", "most"),
    # percent; a pool of 8.14 GiB is printed to 0.06 %, the tokens of 10.3 GiB to 0.5 %
    [("tokens", 0.001), ("pool, GiB", 0.07), ("draft pool, GiB", 0.3)],
)
def test_no_error_is_larger_than_what_the_print_can_tell(what: str, most: float):
    rows = re.findall(rf"\| {re.escape(what)} \|[^|]+\|[^|]+\| ([^|]+) \|", accuracy.page())
    errors = [0.0 if row == "exact" else abs(float(row.removesuffix(" %"))) for row in rows]
    assert errors
    assert max(errors) <= most
