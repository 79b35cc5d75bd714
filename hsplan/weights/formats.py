"""
Number formats of checkpoints: which format a module is in, and how many bytes a matrix takes.

Sources: quantization_config as vLLM, ModelOpt and compressed-tensors write it; byte closures on published checkpoints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

import msgspec

from hsplan.errors import shown
from hsplan.units import ceil_div

# Modules that the 4-bit checkpoints of these families keep in bf16: all but the routed experts.
EXPERTS_ONLY = ("lm_head", "*self_attn*", "*shared_experts*", "*.mlp.gate_proj", "*.mlp.down_proj", "*mlps.*")
MAX_PATTERN = 300
MAX_PATTERNS = 10_000
SIMPLE_REGEX = re.compile(r"(?:[\w-]|\\\.|\.\*|\.|\((?:\?:)?\w+(?:\|\w+)*\)|\^|\$)+")


class Formats(msgspec.Struct, frozen=True):
    """
    `default` is the format of linear layers, `experts` that of routed experts where it differs.

    Modules that match an `excluded` pattern stay bf16.
    """

    default: str = "bf16"
    excluded: tuple[str, ...] = ()
    experts: str | None = None

    def of(self, module: str) -> str:
        """Format of a linear layer by its full module name."""
        if self.experts is not None and ".mlp.experts." in module:
            return self.experts
        return "bf16" if self.default == "bf16" or _is_excluded(module, self.excluded) else self.default


def named(checkpoint: str, known: Formats | str = "") -> Formats:
    """
    The format that `weights: {checkpoint: …}` names; 4-bit ones hold the routed experts only.

    `known` are those of the model's own checkpoint: where its experts have a format of their own, only they change.
    """
    if isinstance(known, Formats) and known.experts is not None:
        return msgspec.structs.replace(known, experts=known.default if checkpoint == "fp8" else checkpoint)
    return Formats(checkpoint, EXPERTS_ONLY if checkpoint in ("nvfp4", "int4") else ())


def of_quantization(config: Any) -> Formats | str:
    """
    Formats of a quantization_config, or the reason why its bytes are not known.

    Known: fp8 with 128 × 128 blocks, ModelOpt NVFP4, compressed-tensors int4 with groups of 32. DeepSeek-V4 names its
    experts' format in `expert_dtype`; its scales take a byte, and fp4 experts are MXFP4.
    """
    if config is None:
        return Formats()
    if not isinstance(config, Mapping):
        return "quantization_config is no mapping"
    method = config.get("quant_method")
    if method == "fp8" and config.get("weight_block_size") == [128, 128]:
        if "expert_dtype" in config:
            return Formats("fp8_ue8m0", experts="mxfp4" if config["expert_dtype"] == "fp4" else "fp8_ue8m0")
        return _formats("fp8", config.get("modules_to_not_convert"))
    algorithm = config.get("quant_algo")
    if algorithm == "NVFP4" and method in ("modelopt", "modelopt_fp4", None):
        return _formats("nvfp4", config.get("ignore", config.get("exclude_modules")))
    if method == "compressed-tensors" and _int4_group_32(config):
        return _formats("int4", config.get("ignore"))
    return f"the number format {shown(method or algorithm)!r} of quantization_config is not known"


def kv_cache_is_fp8(config: Any) -> bool:
    """Whether a checkpoint asks for an fp8 KV cache (`kv_cache_quant_algo` or `kv_cache_scheme`)."""
    if not isinstance(config, Mapping):
        return False
    scheme = config.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        return scheme.get("type") == "float" and scheme.get("num_bits") == 8
    return shown(scheme or config.get("kv_cache_quant_algo")).upper() in ("FP8", "FLOAT8")


def matrix_bytes(number_format: str, rows: int, cols: int) -> int:
    """
    Bytes of one rows × cols matrix with its scales.

    fp8: one fp32 scale a 128 × 128 block, a byte in fp8_ue8m0; nvfp4: an fp8 scale a 16 values and two fp32 scalars;
    mxfp4: a byte a 32 values; int4: a bf16 scale a 32 values and the 16-byte shape tensor.
    """
    elements = rows * cols
    match number_format:
        case "fp8":
            return elements + 4 * ceil_div(rows, 128) * ceil_div(cols, 128)
        case "fp8_ue8m0":
            return elements + ceil_div(rows, 128) * ceil_div(cols, 128)
        case "mxfp4":
            return ceil_div(elements, 2) + ceil_div(elements, 32)
        case "int64":
            return 8 * elements
        case "nvfp4":
            return ceil_div(elements, 2) + ceil_div(elements, 16) + 8
        case "int4":
            return ceil_div(elements, 2) + 2 * ceil_div(elements, 32) + 16
        case "fp32":
            return 4 * elements
        case _:
            return 2 * elements


def _formats(default: str, excluded: Any) -> Formats | str:
    patterns = excluded or []
    if not isinstance(patterns, list) or not all(isinstance(p, str) and len(p) <= MAX_PATTERN for p in patterns):
        return "the list of excluded modules in quantization_config cannot be read"
    if len(patterns) > MAX_PATTERNS:
        return "the list of excluded modules in quantization_config is too long"
    if any(p.startswith("re:") and not _is_simple(p[3:]) for p in patterns):
        return "an excluded-module pattern of quantization_config is too complex to match safely"
    return Formats(default, tuple(p.removeprefix("language_model.") for p in patterns))


def _int4_group_32(config: Mapping[str, Any]) -> bool:
    groups = config.get("config_groups")
    weights = (
        [g.get("weights") for g in groups.values() if isinstance(g, Mapping)] if isinstance(groups, Mapping) else []
    )
    return bool(weights) and all(
        isinstance(w, Mapping) and w.get("num_bits") == 4 and w.get("group_size") == 32 and w.get("type") == "int"
        for w in weights
    )


def _is_simple(pattern: str) -> bool:
    """Names, escaped dots, up to three `.*` and three plain alternatives: what exporters write, and never slow."""
    return SIMPLE_REGEX.fullmatch(pattern) is not None and pattern.count(".*") <= 3 and pattern.count("(") <= 3


@lru_cache(maxsize=4096)
def _is_excluded(module: str, patterns: tuple[str, ...]) -> bool:
    names, wild = _sorted_patterns(patterns)
    parts = module.split(".")
    if any(".".join(parts[:end]) in names for end in range(1, len(parts) + 1)):
        return True
    return any(_matches(module, pattern) for pattern in wild)


@lru_cache(maxsize=64)
def _sorted_patterns(patterns: tuple[str, ...]) -> tuple[frozenset[str], tuple[str, ...]]:
    """Plain module names, which also exclude what is below them, and patterns."""
    wild = tuple(p for p in patterns if p.startswith("re:") or any(c in p for c in "*?["))
    return frozenset(patterns) - frozenset(wild), wild


def _matches(module: str, pattern: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern[3:], module) is not None
    return pattern.count("*") <= 3 and fnmatchcase(module, pattern)
