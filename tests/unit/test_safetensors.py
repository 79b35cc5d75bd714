"""Weights of a local folder, read from the headers of its files: real headers, broken ones, and whole plans."""

from __future__ import annotations

import json

import pytest
from configs import LONGCAT_FLASH

import hsplan
from hsplan import InputError
from hsplan.families import read_model
from hsplan.spec import load_spec
from hsplan.weights import has_safetensors, read_folder

TINY = {
    "architectures": ["GlmMoeDsaForCausalLM"],
    "num_hidden_layers": 2,
    "num_nextn_predict_layers": 1,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "q_lora_rank": 128,
    "kv_lora_rank": 128,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
    "index_topk": 2048,
    "index_head_dim": 128,
    "index_n_heads": 2,
    "indexer_rope_interleave": True,
    "first_k_dense_replace": 1,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "moe_intermediate_size": 64,
    "intermediate_size": 512,
    "vocab_size": 1024,
    "max_position_embeddings": 32768,
}

# Bytes of each tensor; no two sums are alike.
MAIN = {
    "model.embed_tokens.weight": 1_000,
    "lm_head.weight": 2_000,
    "model.norm.weight": 10,
    "model.layers.0.input_layernorm.weight": 20,
    "model.layers.0.self_attn.q_a_proj.weight": 30,
    "model.layers.0.self_attn.q_b_proj.weight": 4_000,
    "model.layers.0.self_attn.q_b_proj.weight_scale_inv": 4,
    "model.layers.0.self_attn.kv_b_proj.weight": 6_000,
    "model.layers.0.self_attn.o_proj.weight": 8_000,
    "model.layers.0.self_attn.indexer.wq_b.weight": 100,
    "model.layers.0.self_attn.indexer.k_norm.bias": 1,
    "model.layers.0.mlp.gate_proj.weight": 10_000,
    "model.layers.0.mlp.up_proj.weight": 10_000,
    "model.layers.0.mlp.down_proj.weight": 10_000,
    "model.layers.1.self_attn.q_a_proj.weight": 40,
    "model.layers.1.self_attn.indexer.wq_b.weight": 90,
    "model.layers.1.mlp.gate.weight": 50,
    "model.layers.1.mlp.gate.e_score_correction_bias": 6,
    "model.layers.1.mlp.experts.0.gate_proj.weight": 50_000,
    "model.layers.1.mlp.experts.0.gate_proj.weight_scale_2": 4,
    "model.layers.1.mlp.experts.3.down_proj.weight_packed": 50_000,
    "model.layers.1.mlp.shared_experts.down_proj.weight": 12_000,
}
MTP = {
    "model.layers.2.embed_tokens.weight": 1_000,
    "model.layers.2.shared_head.head.weight": 2_000,
    "model.layers.2.eh_proj.weight": 200,
    "model.layers.2.self_attn.o_proj.weight": 8_000,
    "model.layers.2.self_attn.indexer.wq_b.weight": 100,
    "model.layers.2.mlp.experts.0.gate_proj.weight": 50_000,
}


def write_header(file, sizes):
    """A safetensors file of tensors with these sizes; their bytes are a hole."""
    header, at = {"__metadata__": {"format": "pt"}}, 0
    for name, size in sizes.items():
        header[name] = {"dtype": "U8", "shape": [size], "data_offsets": [at, at + size]}
        at += size
    raw = json.dumps(header).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw)
    with file.open("r+b") as stream:
        stream.truncate(8 + len(raw) + at)


@pytest.fixture
def folder(tmp_path):
    """A model folder: config.json and two shards with an index, MTP layer included."""
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    tensors = {**MAIN, **MTP}
    names = list(tensors)
    shards = {"model-00001-of-00002.safetensors": names[:9], "model-00002-of-00002.safetensors": names[9:]}
    for file, held in shards.items():
        write_header(tmp_path / file, {name: tensors[name] for name in held})
    weight_map = {name: file for file, held in shards.items() for name in held}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return tmp_path


@pytest.fixture
def model():
    """The model of the folder."""
    return read_model(load_spec({"model": TINY, "deployment": {"gpu": "h200", "tp": 1}}, {}))


def test_tensors_are_summed_by_what_the_engine_divides_them_by(folder, model):
    found = read_folder(folder, model, (0, 2))
    assert found.main == {
        "embed": 1_000,
        "head": 2_000,
        "replicated": 156,  # norms 30, q_a 70, router 56
        "attention": 18_004,
        "dense": 30_000,
        "expert": 100_004,
        "shared": 12_000,
    }


def test_indexers_are_summed_by_their_layer(folder, model):
    assert read_folder(folder, model, (0, 2)).indexers == {0: 101, 1: 90}


def test_an_mtp_layer_is_the_draft_without_its_copies_of_embedding_and_head(folder, model):
    assert read_folder(folder, model, (0, 2)).draft == {"replicated": 300, "attention": 8_000, "expert": 50_000}


def test_the_first_stage_holds_the_embedding_and_its_layers(folder, model):
    found = read_folder(folder, model, (0, 1))
    assert found.main == {"embed": 1_000, "replicated": 50, "attention": 18_004, "dense": 30_000}
    assert found.indexers == {0: 101}


def test_the_last_stage_holds_the_head_and_the_norm(folder, model):
    found = read_folder(folder, model, (1, 2))
    assert found.main == {"head": 2_000, "replicated": 106, "expert": 100_004, "shared": 12_000}
    assert found.indexers == {1: 90}


def test_a_prefix_for_the_language_model_changes_nothing(tmp_path, model):
    write_header(tmp_path / "model.safetensors", {f"language_model.{name}": size for name, size in MAIN.items()})
    found = read_folder(tmp_path, model, (0, 2))
    assert (found.main["embed"], found.main["head"], found.main["attention"], found.indexers[0]) == (
        1_000,
        2_000,
        18_004,
        101,
    )


def test_sub_layers_of_longcat_are_divided_like_those_of_other_models(tmp_path):
    longcat = read_model(load_spec({"model": LONGCAT_FLASH, "deployment": {"gpu": "h200", "tp": 1}}, {}))
    sizes = {
        "model.embed_tokens.weight": 100,
        "lm_head.weight": 200,
        **{f"model.layers.{block}.input_layernorm.weight": 1 for block in range(28)},
        "model.layers.0.self_attn.0.q_b_proj.weight": 4_000,
        "model.layers.0.self_attn.1.o_proj.weight": 8_000,
        "model.layers.0.mlps.0.gate_proj.weight": 10_000,
        "model.layers.0.mlp.experts.0.gate_proj.weight": 50_000,
    }
    write_header(tmp_path / "model.safetensors", sizes)
    assert read_folder(tmp_path, longcat, (0, 56)).main == {
        "embed": 100, "head": 200, "replicated": 28, "attention": 12_000, "dense": 10_000, "expert": 50_000,
    }  # fmt: skip


# Whole plans


def test_a_folder_is_planned_from_its_own_headers(folder):
    plan = hsplan.plan(folder, gpu="h200", tp=2).to_dict()
    ledger = {line["name"]: line["bytes"] for line in plan["scenarios"]["baseline"]["ledger"]}
    # Sharded by 2: embed 500, head 1,000, attention 9,002, dense 15,000, experts 50,002, shared 6,000; replicated 156;
    # absorbed copies 4 × (64 + 64) × 128 / 2 × 2 B × 2 layers; rope cache 32,768 × 64 × 4 B; two indexers of 101.
    assert ledger["weights"] == 81_660 + 131_072 + 8_388_608 + 202


def test_an_mtp_layer_in_a_folder_is_loaded_only_when_the_deployment_drafts(folder):
    names = [
        line["name"] for line in hsplan.plan(folder, gpu="h200", tp=2).to_dict()["scenarios"]["baseline"]["ledger"]
    ]
    assert "draft weights" not in names


def test_an_mtp_layer_in_a_folder_is_loaded_with_embedding_and_head_of_its_own(folder):
    plan = hsplan.plan(folder, gpu="h200", tp=2, draft_layers=1).to_dict()
    ledger = {line["name"]: line["bytes"] for line in plan["scenarios"]["baseline"]["ledger"]}
    # Replicated 300, attention 4,000, experts 25,000; embedding 500 and head 1,000; absorbed 65,536.
    assert ledger["draft weights"] == 29_300 + 1_500 + 65_536
    # The draft of the last pipeline stage has its own copies too, where the stage itself has no embedding.
    staged = hsplan.plan(folder, gpu="h200", tp=2, pp=2, draft_layers=1).to_dict()
    ledger = {line["name"]: line["bytes"] for line in staged["scenarios"][staged["as_launched"]]["ledger"]}
    assert ledger["draft weights"] == 29_300 + 1_500 + 65_536


def test_a_spec_may_point_at_a_folder_of_weights(folder):
    data = {"model": TINY, "weights": {"path": str(folder)}, "deployment": {"gpu": "h200", "tp": 2}}
    from_spec = hsplan.plan(data).to_dict()["scenarios"]["baseline"]
    from_folder = hsplan.plan(folder, gpu="h200", tp=2).to_dict()["scenarios"]["baseline"]
    assert from_spec["kv_budget_bytes"] == from_folder["kv_budget_bytes"]


def test_a_given_figure_wins_over_the_files_in_the_folder(folder):
    plan = hsplan.plan(folder, gpu="h200", tp=2, bytes_per_rank="10GiB").to_dict()
    ledger = {line["name"]: line["bytes"] for line in plan["scenarios"]["baseline"]["ledger"]}
    assert 10_737_418_240 - 10**6 < ledger["weights"] <= 10_737_418_240


def test_a_folder_without_safetensors_is_planned_from_its_config(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    assert not has_safetensors(tmp_path)
    assert hsplan.plan(tmp_path, gpu="h200", tp=2).to_dict()["scenarios"]["baseline"]["fits"]


# Broken folders


def refused(folder, **overrides):
    """The printed lines of the error."""
    with pytest.raises(InputError) as caught:
        hsplan.plan(
            {"model": TINY, "weights": {"path": str(folder)}, "deployment": {"gpu": "h200", "tp": 1}}, **overrides
        )
    assert all(line.isprintable() for line in caught.value.lines())
    return caught.value.lines()


def test_a_folder_without_weights_is_refused(tmp_path):
    assert refused(tmp_path) == [
        f"{tmp_path}: no safetensors files",
        "  give a folder that holds the model's *.safetensors files",
    ]


def test_a_file_instead_of_a_folder_is_refused(tmp_path):
    (tmp_path / "x.safetensors").write_bytes(b"")
    assert "no safetensors files" in refused(tmp_path / "x.safetensors")[0]


def test_a_file_of_the_index_that_is_missing_is_named(folder):
    (folder / "model-00002-of-00002.safetensors").unlink()
    head, remedy = refused(folder)
    assert head == f"{folder}: 1 of the 2 files in the index are missing, first model-00002-of-00002.safetensors"
    assert remedy == "  finish the download, or give bytes_per_rank"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "3",
        '{"weight_map": 3}',
        '{"weight_map": {"a": [1]}}',
        '{"weight_map": null}',
        "[" * 100_000,
        "\xff",
    ],
)
def test_a_broken_index_is_refused(folder, text):
    (folder / "model.safetensors.index.json").write_bytes(text.encode("latin-1"))
    assert refused(folder)[0] == f"{folder}/model.safetensors.index.json: cannot be read as a safetensors index"


def entry(offsets):
    return json.dumps({"x": {"dtype": "U8", "shape": [1], "data_offsets": offsets}}).encode()


def framed(raw, length=None):
    return (len(raw) if length is None else length).to_bytes(8, "little") + raw


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\x01\x00\x00",
        framed(b"{}", 0),
        framed(b"{}", 1_000),
        framed(b"{}", 2**63),
        framed(b"{}", 2**64 - 1),
        framed(b"{}", 101 * 2**20),
        framed(b"{"),
        framed(b"[]"),
        framed(b"3"),
        framed(b"\xff\xfe"),
        framed(b'{"x": 3}'),
        framed(b'{"x": {}}'),
        framed(b'{"x": {"data_offsets": null}}'),
        framed(entry([0])),
        framed(entry([0, 1, 2])),
        framed(entry([5, 1])),
        framed(entry([-5, 1])),
        framed(entry([0.0, 1.0])),
        framed(entry(["0", "1"])),
        framed(b'{"x": {"data_offsets": [0, NaN]}}'),
        framed(b'{"x": ' + b"[" * 100_000),
        framed(b'{"model.layers.' + b"9" * 5000 + b'.x.weight": {"data_offsets": [0, 1]}}'),
    ],
    ids=[
        "empty", "three bytes", "no header", "truncated", "2^63", "2^64-1", "101 MiB", "no end", "list", "number",
        "not UTF-8", "no entry", "no offsets", "null", "one offset", "three offsets", "reversed", "negative",
        "floats", "texts",
        "nan", "deep",
        "layer of 5000 digits",
    ],
)  # fmt: skip
def test_a_broken_header_is_refused_with_its_file(tmp_path, raw):
    (tmp_path / "model.safetensors").write_bytes(raw)
    head, remedy = refused(tmp_path)
    assert head.startswith(f"{tmp_path}/model.safetensors: the safetensors header cannot be read")
    assert remedy == "  download the file again"


def test_a_folder_named_like_a_file_and_a_dangling_link_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "model.safetensors").mkdir()
    assert "cannot be read" in refused(tmp_path / "a")[0]
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "model.safetensors").symlink_to(tmp_path / "gone")
    assert "cannot be read" in refused(tmp_path / "b")[0]


def test_weights_that_no_gpu_holds_do_not_fit_and_do_not_crash(tmp_path):
    write_header(tmp_path / "model.safetensors", {**MAIN, "model.layers.0.self_attn.q_a_proj.weight": 10**12})
    data = {"model": TINY, "weights": {"path": str(tmp_path)}, "deployment": {"gpu": "h200", "tp": 1}}
    launched = hsplan.plan(data)
    assert not launched.fits
    assert launched.launched.pools.tokens.best == 0


@pytest.mark.parametrize("gone", ["model.embed_tokens.weight", "lm_head.weight", "model.layers.1."])
def test_a_folder_that_lacks_a_layer_embedding_or_head_is_refused(tmp_path, model, gone):
    """Half a download must not look like a small model."""
    kept = {name: size for name, size in MAIN.items() if not name.startswith(gone)}
    write_header(tmp_path / "model.safetensors", kept)
    with pytest.raises(InputError, match="lack 1 of 4 parts"):
        read_folder(tmp_path, model, (0, 2))


def test_tensors_past_the_end_of_the_file_are_refused(tmp_path, model):
    write_header(tmp_path / "model.safetensors", MAIN)
    with (tmp_path / "model.safetensors").open("r+b") as stream:
        stream.truncate(2_000)
    with pytest.raises(InputError, match="the safetensors header cannot be read"):
        read_folder(tmp_path, model, (0, 2))
