"""What of a plan Triton's interpreter runs: its first layers, and sizes by hand."""

import hsplan
from hsplan.gpu.decode import Sizes
from hsplan.gpu.scale import pools_of
from hsplan.gpu.small import first_layers, small_plan, small_sizes

SCENARIO = "elided+offload"


def cut(spec, **overrides):
    """Sizes, and for each buffer its line, shape and count."""
    plan = hsplan.plan(spec, **overrides)
    small = small_plan(plan, SCENARIO)
    sizes = small_sizes(plan, small, 6)
    buffers = first_layers(pools_of(small).buffers(), sizes.owners)
    return sizes, [(buffer.line, buffer.shape, buffer.count) for buffer in buffers]


def test_of_glm_52_seven_layers_run_of_which_four_compute_top_k():
    sizes, buffers = cut("glm-5.2-fp8", kv_cache_dtype="fp8_e4m3")
    assert sizes.owners == (True, True, True, False, False, False, True)
    assert buffers == [
        ("KV rows", (384, 1, 656), 7),
        ("index-K", (11, 8448), 4),
        ("index-K", (0, 8448), 3),
        ("host KV pool", (704, 656), 7),
    ]


def test_of_deepseek_v32_two_layers_run_and_both_compute_top_k():
    sizes, buffers = cut("deepseek-v3.2-fp8", kv_cache_dtype="bfloat16")
    assert sizes.owners == (True, True)
    assert buffers == [
        ("KV rows", (384, 1, 1152), 2),
        ("index-K", (11, 8448), 2),
        ("host KV pool", (704, 1152), 2),
    ]


def test_a_plan_of_other_sizes_is_cut_to_the_same():
    options = {"host_to_device_ratio": 8, "max_running_requests": 64, "dp_attention": 8, "kv_budget": "20GiB"}
    assert cut("glm-5.2-fp8", **options) == cut("glm-5.2-fp8")


def test_draft_layers_are_left_out():
    options = {"draft_layers": 1, "num_speculative_tokens": 3}
    assert cut("glm-5.2-fp8", **options) == cut("glm-5.2-fp8")


def of_layers(letters):
    """The owners that run of a model whose layers compute top-k (F) or share it (S)."""
    model = {
        "architectures": ["GlmMoeDsaForCausalLM"],
        "num_hidden_layers": len(letters),
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_topk": 2048,
        "index_head_dim": 128,
        "indexer_types": [{"F": "full", "S": "shared"}[letter] for letter in letters],
    }
    sizes, _ = cut({"model": model, "deployment": {"gpu": "h200", "tp": 1, "kv_budget": "1GiB"}})
    return "".join("F" if owner else "S" for owner in sizes.owners)


def test_layers_run_up_to_the_first_that_computes_top_k_again():
    assert of_layers("FSSFFSF") == "FSSF"


def test_a_model_that_never_computes_it_again_runs_whole():
    assert of_layers("FSS") == "FSS"


def test_no_more_than_eight_layers_run():
    assert of_layers("FSSSSSSSSSSF") == "FSSSSSSS"


SIZES = Sizes(
    owners=(True, True, False, False, True, False),
    row_bytes=656,
    top_k=16,
    slots=32,
    page_tokens=64,
    requests=2,
    context=257,
    steps=6,
)


def test_a_layer_reads_the_top_k_of_the_last_one_that_computed_it():
    assert SIZES.owner_of == [0, 1, 1, 1, 2, 2]
    assert SIZES.groups == 3


def test_hot_buffers_have_a_page_behind_them_and_requests_end_in_a_page():
    assert SIZES.hot_rows == 2 * (32 + 64)
    assert SIZES.request_pages == 5
