"""Reading config.json fields for a family: types and ranges, unknown names, and what is harmless."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from hsplan.errors import InputError, Problem, UnsupportedError, nearest, shown
from hsplan.spec.load import Loaded, expected

S = TypeVar("S", bound=msgspec.Struct)

Layers = Annotated[int, Meta(ge=1, le=4096)]
Dim = Annotated[int, Meta(ge=1, le=2**20)]
Small = Annotated[int, Meta(ge=0, le=2**20)]
Tokens = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Freq = Annotated[int, Meta(ge=-(2**31), le=2**31)]

# A field with one of these in its name may change what the cache holds: never ignored when unknown.
SENSITIVE = re.compile(r"index|kv_|compress|sliding")

HARMLESS = frozenset(
    """
    _name_or_path add_cross_attention attention_bias attention_dropout attention_method auto_map aux_loss_alpha
    bad_words_ids begin_suppress_tokens bos_token_id chunk_size_feed_forward cross_attention_hidden_size
    decoder_start_token_id diversity_penalty do_sample dtype early_stopping encoder_no_repeat_ngram_size eos_token_id
    ep_size exponential_decay_length_penalty finetuning_task forced_bos_token_id forced_eos_token_id head_dim
    hidden_act id2label ignore_index image_token_id index_share_for_mtp_iteration indexer_rope_interleave
    initializer_range is_decoder is_encoder_decoder label2id layer_types length_penalty max_length
    media_placeholder_token_id min_length mlp_layer_types model_type moe_layer_freq moe_router_dtype moe_topk
    mtp_num_layers n_group no_repeat_ngram_size norm_topk_prob num_beam_groups num_beams num_experts_per_tok
    num_key_value_heads num_return_sequences output_attentions output_hidden_states output_scores pad_token_id prefix
    pretraining_tp problem_type pruned_heads qk_head_dim quantization_config remove_invalid_values
    repetition_penalty return_dict return_dict_in_generate rms_norm_eps rope_interleave rope_parameters rope_scaling
    rope_theta routed_scaling_factor router_aux_loss_coef scoring_func sep_token_id seq_aux suppress_tokens
    task_specific_params temperature text_config tf_legacy_loss tie_encoder_decoder tie_word_embeddings
    tokenizer_class top_k top_p topk_group topk_method torch_dtype torchscript transformers_version typical_p
    use_bfloat16 use_cache use_unified_vision_chunk video_placeholder vision_config
    """.split()
)


def read_fields(
    struct: type[S], model: Mapping[str, Any], loaded: Loaded, harmless: frozenset[str] = frozenset()
) -> tuple[S, tuple[str, ...]]:
    """
    `struct` filled from the config fields it names, and the names that were ignored; `harmless` are the family's own.

    Raises InputError for wrong types and, in a hand-written spec, for unknown names; UnsupportedError for an
    unknown name in a config.json that may change the cache.
    """
    known = struct.__struct_fields__
    unknown = [key for key in model if key not in known and key not in HARMLESS and key not in harmless]
    if unknown:
        _refuse(unknown, (*known, *harmless), loaded)
    try:
        return msgspec.convert({key: model[key] for key in known if key in model}, struct), tuple(unknown)
    except (ValueError, OverflowError, RecursionError):  # ValidationError among them
        raise InputError(_problems(struct, model, loaded)) from None


def _refuse(unknown: list[str], known: tuple[str, ...], loaded: Loaded) -> None:
    """Unknown names: an error in a spec, and in a config.json where the cache may depend on them."""
    names = [*known, *HARMLESS]
    if not loaded.is_config:
        problems = [
            Problem(
                where=loaded.where(f"model.{shown(key)}"),
                what=f"unknown model field {shown(key)!r}",
                remedy=nearest(key, names) if _near(key, names) else "remove it, or check its spelling in config.json",
            )
            for key in unknown
        ]
        raise InputError(problems)
    sensitive = [key for key in unknown if SENSITIVE.search(key)]
    if sensitive:
        remedy = "its name says that the KV cache may depend on it, so no number would be safe"
        raise UnsupportedError(
            [
                Problem(where=loaded.where(f"model.{key}"), what=f"unknown field {shown(key)!r}", remedy=remedy)
                for key in sensitive
            ]
        )


def _near(key: object, names: list[str]) -> bool:
    return nearest(key, names).startswith("did you mean")


def _problems(struct: type[msgspec.Struct], model: Mapping[str, Any], loaded: Loaded) -> list[Problem]:
    problems = []
    for field in msgspec.structs.fields(struct):
        place, kind = loaded.where(f"model.{field.name}"), field.type
        if field.name not in model:
            if field.required:
                what = f"`model.{field.name}` is missing"
                problems.append(Problem(where=loaded.where("model"), what=what, remedy=f"give {expected(kind)}"))
            continue
        try:
            msgspec.convert(model[field.name], kind)
        except (ValueError, OverflowError, RecursionError):  # ValidationError among them
            what = f"{field.name} is {shown(model[field.name])}"
            problems.append(Problem(where=place, what=what, remedy=f"give {expected(kind)}"))
    return problems
