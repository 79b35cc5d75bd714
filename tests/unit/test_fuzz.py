"""Thousands of broken specs: each is planned in finite numbers or refused in a few printable lines, soon."""

from __future__ import annotations

import json
import time

import pytest
import yaml
from configs import (
    DEEPSEEK_V3_2,
    DEEPSEEK_V4_1_FLASH,
    DEEPSEEK_V4_FLASH,
    FP8,
    GLM_5_2,
    INT4,
    KIMI_K2_5,
    LONGCAT_FLASH,
    MINIMAX_M3,
    NVFP4,
    spec_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

import hsplan
from hsplan import HsplanError
from hsplan.errors import MAX_PROBLEMS
from hsplan.spec.load import LEAVES

SECONDS = 3
LONGEST_LINE = 2_000
FRACTIONAL = ("bytes_per_full_token", "bytes_per_swa_token")

VALID = (
    spec_of(
        {**GLM_5_2, "quantization_config": NVFP4},
        gpu="gb300", tp=4, draft_layers=1, release="0.5.23", max_running_requests=64,
        offload={"device_buffer_size": 4096, "host_to_device_ratio": 4, "host_memory": "2TiB", "host_pool": "auto"},
        workload={"context": 131072, "tpot_ms": 50},
        weights={"bytes_per_rank": "106.76GiB"},
    ),
    spec_of(
        {**DEEPSEEK_V3_2, "quantization_config": {**FP8, "modules_to_not_convert": ["lm_head", "re:.*gate$"]},
         "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}},
        gpu="h200", tp=8, gpus=8, nodes=1, pp=1, dp_attention=8, ep=8, kv_budget="48.5GiB", engine="sglang@0.5.20",
        layer_range=[0, 61], page_size=64, kv_cache_dtype="fp8_e4m3", weights="auto", disaggregation="decode",
    ),
    spec_of(
        {**KIMI_K2_5, "quantization_config": INT4}, gpu="mi355x", tp=8, mem_fraction=0.85, workload={"context": 8192}
    ),
    spec_of(
        DEEPSEEK_V4_FLASH, gpu="h200", tp=4, max_running_requests=64, swa_full_tokens_ratio=0.1, draft_layers=1,
        chunked_prefill_size=8192, radix_cache=False, release="0.5.23", workload={"context": 8192},
    ),
    spec_of(DEEPSEEK_V4_1_FLASH, gpu="b200", dp_attention=8, kv_budget="40GiB", max_running_requests=64),
    spec_of(MINIMAX_M3, gpu="b300", tp=8, layer_range=[0, 30], kv_budget="50GiB", offload={"host_to_device_ratio": 4}),
    spec_of(
        {**GLM_5_2, "quantization_config": FP8}, engine="vllm", release="0.33.0", gpu="b200", tp=8, draft_layers=1,
        num_speculative_tokens=3, max_model_len=131_072, max_num_batched_tokens=8192, async_scheduling=True, dp=1,
        pcp=1, dcp=1, indexer_kv_dtype="fp8", kv_cache_dtype="fp8_e4m3", attention_backend="flashinfer_mla_sparse",
        offload={"device_buffer_size": 10_240, "host_pool": "384GiB", "host_memory": "2TiB"},
    ),
)  # fmt: skip

for _valid in VALID:
    hsplan.plan(_valid)


def check_numbers(value, key=""):
    """Bytes, tokens, requests and limits are ints; no number is NaN or infinite."""
    if isinstance(value, dict):
        for name, inner in value.items():
            check_numbers(inner, "bytes" if key in ("bytes_per_token", "limits") else name)
    elif isinstance(value, list):
        for inner in value:
            check_numbers(inner, key)
    elif isinstance(value, float):
        assert value - value == 0, f"{key} is {value}"
        if key in FRACTIONAL:
            return
        assert "bytes" not in key
        assert "tokens" not in key
        assert key not in ("requests", "low", "best", "high")


def check_refusal(error):
    """An exit code of the user's, and at most two printable lines a problem."""
    lines, problems = error.lines(), len(error.problems)
    assert error.exit_code in (2, 3)
    assert 1 <= len(lines) <= 2 * min(problems, MAX_PROBLEMS) + (problems > MAX_PROBLEMS)
    assert all(1 <= len(problem.lines()) <= 2 for problem in error.problems)
    assert all(line.isprintable() and len(line) < LONGEST_LINE for line in lines)


def check(spec, **overrides):
    """Plan or refuse `spec`; anything else is a fault of the library."""
    start = time.process_time()
    try:
        data = hsplan.plan(spec, **overrides).to_dict()
    except HsplanError as error:
        check_refusal(error)
    else:
        json.dumps(data, allow_nan=False)
        check_numbers(data)
    assert time.process_time() - start < SECONDS


def deep(depth, *, as_mapping):
    """A value nested `depth` times."""
    value = 1
    for _ in range(depth):
        value = {"x": value} if as_mapping else [value]
    return value


CIRCLE = []
CIRCLE.append(CIRCLE)
NASTY = (
    None, True, False, 0, 1, -1, 2, 3, 64, 2**31 - 1, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, 10**5000,
    0.0, -0.0, 0.5, 1.0, 8.0, 1e-300, 1e308, float("nan"), float("inf"), float("-inf"),
    "", " ", "auto", "here", "null", "x", "8", "-1", "nan", "1GiB", "4G", "134.127GiB", "9" * 5000, "x" * 100_000,
    "\x1b[2J", "a\nb", "\u202e", "\ud800", "\0", "~nobody-here/x", "/", ".", "../..", "sglang@", "@", "main-2026-99-99",
    [], {}, [[]], [None], [1, 2], [2, 1], [0, 78], [-1, 5], ["shared"], ["full", "shared"] * 3000,
    "S", "FS" * 40, "S" * 5000,
    {"": 1}, {1: 2}, {None: None}, {"x": {"y": float("nan")}}, (1, 2), {1, 2}, b"bytes", 1j, object(), CIRCLE,
    deep(50, as_mapping=False), deep(3000, as_mapping=False), deep(50, as_mapping=True), deep(3000, as_mapping=True),
    {**FP8, "modules_to_not_convert": ["re:((", "*" * 200, "re:(a*)*"]},
    {**INT4, "config_groups": {"g": {"weights": {"num_bits": 4, "group_size": 32, "type": "int"}}}},
    {"quant_algo": "NVFP4", "ignore": "all"}, {"kv_cache_scheme": {"type": float("nan")}},
    {"factor": 1e308, "original_max_position_embeddings": 10**300},
    {"factor": 1.5, "original_max_position_embeddings": True},
    {"checkpoint": "nvfp4"}, {"path": "."}, {"bytes_per_rank": 1}, GLM_5_2, LONGCAT_FLASH,
    ["GlmMoeDsaForCausalLM"], ["DeepseekV3ForCausalLM"], ["LongcatFlashForCausalLM"], ["LongcatCausalLM"],
)  # fmt: skip
KEYS = (
    *LEAVES,
    "model",
    "deployment",
    "weights",
    "offload",
    "workload",
    "name",
    *GLM_5_2,
    *LONGCAT_FLASH,
    "text_config",
    "",
)
ODD_KEYS = (
    "kv_cache_dtyp",
    "tpp",
    "sliding_window",
    "index_new",
    "x" * 3000,
    "\x1b[2J",
    "a.b",
    "\n",
    "é",
    1,
    None,
    (1, 2),
    float("nan"),
)


DEPTH = 6


def fresh(value, depth=DEPTH):
    """A copy as deep as `places` looks: deeper ones may be circular."""
    if depth and isinstance(value, dict):
        return {key: fresh(inner, depth - 1) for key, inner in value.items()}
    if depth and isinstance(value, list):
        return [fresh(inner, depth - 1) for inner in value]
    return value


def places(value, depth=DEPTH):
    """Every (container, key) in a nest of dicts and the heads of its lists."""
    pairs = list(value.items() if isinstance(value, dict) else enumerate(value[:4]))
    found = [(value, key) for key, _ in pairs]
    for _, inner in pairs:
        if depth > 1 and isinstance(inner, dict | list):
            found += places(inner, depth - 1)
    return found


NUMBER = st.integers(0, 10_000)
WHICH = st.sampled_from(range(len(VALID)))
INDEX = st.sampled_from(range(len(NASTY)))
MUTATION = st.tuples(
    st.sampled_from(["set", "set", "set", "delete", "misspell", "add", "odd", "move", "wrap", "scale"]),
    NUMBER,
    INDEX,
    st.sampled_from(KEYS),
    st.sampled_from(ODD_KEYS),
)


def mutate(spec, mutations):
    """Break a copy of `spec`, one step at a time."""
    spec = fresh(spec)
    for kind, number, nasty, key, odd in mutations:
        found = places(spec)
        if not found:
            return spec
        container, at = found[number % len(found)]
        value = container[at]
        if kind == "set":
            container[at] = fresh(NASTY[nasty])
        elif kind == "delete":
            del container[at]
        elif kind == "wrap":
            container[at] = [value] if number % 2 else {str(at): value}
        elif kind == "scale" and isinstance(value, int | float):
            container[at] = value * (-1, 3, 1000, 10**9)[number % 4]
        elif not isinstance(container, dict):
            container.append(fresh(NASTY[nasty]))
        elif kind == "misspell" and isinstance(at, str):
            container[at[: number % (len(at) + 1)] + at[number % (len(at) + 1) + 1 :] + "s" * (number % 2)] = (
                container.pop(at)
            )
        elif kind == "add":
            container[key] = fresh(NASTY[nasty])
        elif kind == "odd":
            container[odd] = fresh(value)
        elif kind == "move":
            spec[key] = fresh(value)
    return spec


@settings(max_examples=2000)
@given(WHICH, st.lists(MUTATION, min_size=1, max_size=4))
def test_a_broken_mapping_is_planned_or_refused(which, mutations):
    check(mutate(VALID[which], mutations))


@settings(max_examples=500)
@given(WHICH, st.dictionaries(st.sampled_from([*LEAVES, "name", "workload", "offload"]), INDEX, min_size=1, max_size=3))
def test_broken_overrides_are_planned_or_refused(which, overrides):
    check(VALID[which], **{key: NASTY[index] for key, index in overrides.items()})


@pytest.mark.parametrize("index", range(len(NASTY)))
@pytest.mark.parametrize("spec", VALID, ids=["glm", "v3.2", "kimi", "v4", "v4.1", "m3", "vllm"])
def test_no_value_breaks_any_key(spec, index):
    for container, key in places(broken := fresh(spec)):
        kept, container[key] = container[key], NASTY[index]
        check(broken)
        container[key] = kept


# Text

YAML = tuple(yaml.safe_dump(json.loads(json.dumps(spec)), sort_keys=False).encode() for spec in VALID)
JSON = tuple(json.dumps(spec["model"], indent=1).encode() for spec in VALID)
BOMB = b"".join(b"b%d: &b%d [%s]\n" % (i, i, b", ".join([b"*b%d" % (i - 1)] * 9) if i else b"x, x") for i in range(9))
CHAIN = b"c0: &c0 [x]\n" + b"".join(b"c%d: &c%d [*c%d]\n" % (i, i, i - 1) for i in range(1, 1500))
SNIPPETS = (
    b"\t", b"\xff", b"\xfe\xff", b"\x00", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\r", b"\x1b[2J", b"\xe2\x80\xae",
    b": ", b"- ", b"? ", b"&a ", b"*a", b"*a: ", b"!!python/name:os.system ", b"!x ", b"<<: ", b"{", b"}", b"[", b"]",
    b"'", b'"', b"|\n", b">\n", b"#", b"%YAML 9.9\n", b"---\n", b"...\n", b"\n  ", b".nan", b".inf", b"1:30", b"010",
    b"2026-01-01",
    b"~", b"@", b"NaN", b"-Infinity", b"9" * 5000, b"1e999", b"[" * 3000, b"{a: " * 300, b"- " * 300, b"x: &x [*x]\n",
    BOMB, CHAIN, b",", b"\\u", b"\\ud800",
)  # fmt: skip
EDIT = st.tuples(
    st.sampled_from(["insert", "insert", "cut", "truncate", "double", "swap", "indent", "replace"]),
    NUMBER,
    st.sampled_from(SNIPPETS),
)


def edit(raw, edits):
    """Break a text, one step at a time."""
    for kind, number, snippet in edits:
        at = number * 7919 % (len(raw) + 1)
        lines = raw.split(b"\n")
        row = number % len(lines)
        if kind == "insert":
            raw = raw[:at] + snippet + raw[at:]
        elif kind == "replace":
            raw = raw[:at] + snippet + raw[at + len(snippet) :]
        elif kind == "cut":
            raw = raw[:at] + raw[at + number % 40 :]
        elif kind == "truncate":
            raw = raw[:at]
        else:
            if kind == "double":
                lines.insert(row, lines[number // 3 % len(lines)])
            elif kind == "swap":
                lines[row], lines[row - 1] = lines[row - 1], lines[row]
            else:
                lines[row] = b" " * (number % 7) + lines[row]
            raw = b"\n".join(lines)
    return raw


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One folder for all examples: each overwrites the file of the one before."""
    return tmp_path_factory.mktemp("fuzz")


WHOLE = {
    "recursive list": b"model: &a [*a]\n",
    "recursive mapping": b"model: &a {b: *a}\n",
    "chain of aliases": CHAIN,
    "bomb": BOMB,
    "empty": b"",
    "only a mark": b"\xef\xbb\xbf",
    "utf-16": "model: {}\n".encode("utf-16"),
    "zeros": bytes(1000),
    "surrogate": b'{"architectures": ["GlmMoeDsaForCausalLM"], "num_hidden_layers": "\\ud800"}',
    "nan": b'{"architectures": ["GlmMoeDsaForCausalLM"], "num_hidden_layers": NaN}',
    "deep": b"[" * 100_000,
}


@pytest.mark.parametrize("name", ["spec.yaml", "config.json"])
@pytest.mark.parametrize("raw", WHOLE.values(), ids=WHOLE)
def test_a_hopeless_file_is_refused(folder, name, raw):
    (folder / name).write_bytes(raw)
    check(folder / name, gpu="h200", tp=8)


@settings(max_examples=1000)
@given(WHICH, st.lists(EDIT, min_size=1, max_size=4))
def test_a_broken_yaml_file_is_planned_or_refused(folder, which, edits):
    (folder / "spec.yaml").write_bytes(edit(YAML[which], edits))
    check(folder / "spec.yaml")


@settings(max_examples=700)
@given(WHICH, st.lists(EDIT, min_size=1, max_size=4))
def test_a_broken_config_json_is_planned_or_refused(folder, which, edits):
    (folder / "config.json").write_bytes(edit(JSON[which], edits))
    check(folder / "config.json", gpu="h200", tp=8)


@settings(max_examples=300)
@given(st.text(max_size=30))
def test_any_text_names_a_spec_or_is_refused(text):
    check(text)
    check({"model": text, "deployment": {"gpu": "h200", "tp": 8}})
    check({"model": GLM_5_2, "weights": {"path": text}, "deployment": {"gpu": text or "h200", "tp": 8}})
