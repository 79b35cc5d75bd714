"""Sizes in and out: GiB is 2^30 bytes, GB is 10^9 bytes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hsplan.units import ceil_div, floor_to, gib, need, parse_bytes, size

ONE_EIB = 1_152_921_504_606_846_976


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        (0, 0),
        (134_127, 134_127),
        ("134127", 134_127),
        ("134127 B", 134_127),
        # 134 GiB are 143,881,404,416 bytes and 0.127 GiB are 136,365,211.648.
        ("134.127GiB", 144_017_769_627),
        ("106.76GiB", 114_632_677_130),
        ("1KiB", 1_024),
        ("1MiB", 1_048_576),
        ("1GiB", 1_073_741_824),
        ("1TiB", 1_099_511_627_776),
        ("1KB", 1_000),
        ("1MB", 1_000_000),
        ("1GB", 1_000_000_000),
        ("1TB", 1_000_000_000_000),
        ("2 TiB", 2_199_023_255_552),
        ("  64 gib\t", 68_719_476_736),
        ("0.5GiB", 536_870_912),
        ("1.9B", 1),
        ("1048576TiB", ONE_EIB),
        (ONE_EIB, ONE_EIB),
    ],
)
def test_a_size_is_read_in_the_unit_that_it_names(text, n_bytes):
    assert parse_bytes(text) == n_bytes


@pytest.mark.parametrize("text", ["4G", "4M", "4K", "4T", "4g", "4Gi", "4Gb/s", "4Gbit", "4PB", "4 GiB GiB", "4GİB"])
def test_an_ambiguous_or_unknown_unit_is_refused(text):
    with pytest.raises(ValueError, match=r"unit|write bytes"):
        parse_bytes(text)


def test_the_message_for_an_ambiguous_unit_names_both_meanings():
    with pytest.raises(ValueError, match=r"GiB \(2\^30 bytes\), GB \(10\^9 bytes\)") as caught:
        parse_bytes("4G")
    assert "'G'" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", " ", "GiB", "-1", "-1GiB", "+1", "1e9", "1,024", "0x10", "1_000", "nan", "inf", ".5GiB", "5.GiB"]
)
def test_what_is_no_plain_number_is_refused(text):
    with pytest.raises(ValueError, match="write bytes, or a size such as"):
        parse_bytes(text)


@pytest.mark.parametrize(
    "value",
    [-1, ONE_EIB + 1, "1048577TiB", "99999999999999999999TiB", 10**5000],
    ids=["-1", "+1", "TiB", "huge", "10^5000"],
)
def test_what_no_machine_holds_is_refused(value):
    with pytest.raises(ValueError, match="from 0 to 1 EiB"):
        parse_bytes(value)


def test_a_number_of_thousands_of_digits_is_refused_at_once():
    with pytest.raises(ValueError, match="write bytes"):
        parse_bytes("9" * 5000 + "GiB")


@given(st.integers(0, ONE_EIB))
@example(ONE_EIB)
def test_bytes_written_as_text_come_back(n_bytes):
    assert parse_bytes(str(n_bytes)) == parse_bytes(f"{n_bytes}B") == parse_bytes(n_bytes) == n_bytes


@given(
    whole=st.integers(0, 10**15),
    decimals=st.text("0123456789", min_size=1, max_size=20),
    unit=st.sampled_from([("B", 1), ("KiB", 2**10), ("GB", 10**9), ("GiB", 2**30)]),
)
@example(whole=9_007_199_254_740_992, decimals="9" * 20, unit=("B", 1))
def test_a_fraction_of_a_byte_is_dropped_and_never_rounded_up(whole, decimals, unit):
    name, factor = unit
    exact = Fraction(f"{whole}.{decimals}") * factor
    if exact <= ONE_EIB:
        assert parse_bytes(f"{whole}.{decimals}{name}") == exact.numerator // exact.denominator


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_024, "1.00 KiB"),
        (1_572_864, "1.50 MiB"),
        (144_017_769_627, "134.13 GiB"),
        (2_199_023_255_552, "2.00 TiB"),
        (-1_073_741_824, "-1.00 GiB"),
    ],
)
def test_a_size_is_printed_in_the_unit_that_reads_best(n_bytes, text):
    assert size(n_bytes) == text


def test_gib_prints_thousands_and_the_digits_asked_for():
    assert gib(144_017_769_627) == "134.13 GiB"
    assert gib(144_017_769_627, 3) == "134.127 GiB"
    assert gib(2_199_023_255_552) == "2,048.00 GiB"


@pytest.mark.parametrize(
    ("tokens", "page", "floored"), [(0, 64, 0), (63, 64, 0), (64, 64, 64), (2_574_911, 64, 2_574_848), (7, 1, 7)]
)
def test_tokens_are_floored_to_whole_pages(tokens, page, floored):
    assert floor_to(tokens, page) == floored


@pytest.mark.parametrize(("a", "b", "quotient"), [(0, 4, 0), (1, 4, 1), (4, 4, 1), (5, 4, 2), (78, 4, 20), (-5, 4, -1)])
def test_ceil_div_is_the_least_integer_not_below(a, b, quotient):
    assert ceil_div(a, b) == quotient


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1_023, "1023 B"),
        (1_073_741_824, "1.00 GiB"),
        (1_073_741_825, "1.01 GiB"),
        # 960.94 GiB are 1,031,801,668,239.36 bytes.
        (1_031_801_468_006, "960.94 GiB"),
        (1_031_801_668_240, "960.95 GiB"),
    ],
)
def test_what_is_needed_is_rounded_up(n_bytes, text):
    assert need(n_bytes) == text


@given(st.integers(min_value=0, max_value=ONE_EIB // 2))
def test_what_is_needed_is_enough_when_given_back(n_bytes):
    assert parse_bytes(need(n_bytes).replace(",", "")) >= n_bytes
