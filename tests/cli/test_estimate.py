"""`hsplan estimate`: tables, ledger, formulas and grids."""

import json
import re

import pytest

LOGGED = ("--gpu", "gb300", "--tp", "4", "--draft-layers", "1", "--kv-budget", "134.127GiB")


def _row(text, label):
    """The cells of the row that starts with `label`."""
    line = next(line for line in text.splitlines() if line.startswith(label))
    return re.split(r"\s{2,}", line.strip())[1:]


def test_the_table_shows_the_four_scenarios_side_by_side(run, glm):
    code, out, err = run("estimate", glm, *LOGGED, "--engine", "sglang@0.5.17")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "my-glm: sglang 0.5.17, 4 × gb300, tp 4, draft_layers 1, max_running_requests 128"
    assert out.splitlines()[2].split() == ["baseline", "elided", "offload", "elided+offload"]
    assert out.splitlines()[3].strip() == "as launched"
    assert _row(out, "device tokens")[:3] == ["2,574,848", "3,003,136", "1,981,504"]
    assert _row(out, "logical tokens")[2] == "3,963,008"  # 2 × 1,981,504
    assert _row(out, "gain over baseline")[:3] == ["–", "+16.6 %", "+53.9 %"]
    assert _row(out, "B/token, charged")[:3] == ["55,932", "48,311", "72,680"]
    assert _row(out, "KV row") == ["576 B fp8_raw", "576 B fp8_raw", "656 B fp8_packed", "656 B fp8_packed"]
    assert _row(out, "KV budget, GiB")[0] == "134.13"
    assert _row(out, "requests of 32,768")[:2] == ["78", "91"]
    assert _row(out, "what binds")[0] == "gpu"
    assert _row(out, "engine runs it") == ["yes", "no", "yes", "no"]
    assert "baseline: gpu binds; lifted by offload, more ranks, or a higher mem_fraction" in out
    assert out.splitlines()[-1].startswith("fits as launched (baseline): 2,574,848 tokens, 78 requests, gpu binds")


def test_uncertain_budgets_show_their_range_in_title_and_table(run, glm):
    out = run("estimate", glm, "--gpu", "b200")[1]
    assert re.search(r", KV budget \d+\.\d\d to \d+\.\d\d GiB$", out.splitlines()[0])
    best, low, high = (_row(out, label)[1] for label in ("device tokens", "  at least", "  at most"))
    assert int(low.replace(",", "")) < int(best.replace(",", "")) < int(high.replace(",", ""))


def test_an_unavailable_scenario_says_why(run, glm):
    out = run("estimate", glm, "--gpu", "b200", "--kv-cache-dtype", "bfloat16", "--attention-backend", "trtllm")[1]
    assert _row(out, "engine runs it")[2:] == ["unavailable", "unavailable"]
    assert "offload: unavailable: HiSparse with bfloat16 on this GPU refuses backend trtllm" in out


def test_any_offload_option_launches_with_offload(run, glm):
    plain = json.loads(run("estimate", glm, "--json")[1])
    flag = json.loads(run("estimate", glm, "--offload", "--json")[1])
    leaf = json.loads(run("estimate", glm, "--host-to-device-ratio", "4", "--json")[1])
    assert [plain["as_launched"], flag["as_launched"], leaf["as_launched"]] == ["elided", "offload", "offload"]
    assert leaf["scenarios"]["offload"]["logical_tokens"] == 4 * leaf["scenarios"]["offload"]["max_total_num_tokens"]


def test_switches_come_in_both_directions(run, glm):
    assert run("estimate", glm, "--radix-cache", "--hierarchical-cache")[0] == 0
    code, out, _ = run("estimate", glm, "--no-radix-cache", "--no-hierarchical-cache")
    assert code == 0
    assert "the capacity is the same" in out


def test_hicache_without_the_radix_cache_is_refused(run, glm):
    code, _, err = run("estimate", glm, "--no-radix-cache", "--hierarchical-cache")
    assert code == 2
    assert err.startswith("--radix-cache: HiCache extends the radix cache, which is off")


def test_a_wish_for_the_time_of_a_token_is_named_as_not_modelled(run, glm):
    assert "  by host link " not in run("estimate", glm)[1]
    assert "  by host link " in run("estimate", glm, "--tpot-ms", "50")[1]
    assert "  by host link " in run("estimate", glm, "--tpot-ms", "50", "--step-ms", "{fixed: 12, per_request: 0.2}")[1]


def test_a_backend_of_another_engine_is_refused(run):
    code, _, err = run("estimate", "deepseek-v3-fp8", "--gpu", "h200", "--attention-backend", "flashinfer_mla_sparse")
    assert code == 3
    assert "SGLang has no backend flashinfer_mla_sparse" in err


def test_explain_writes_the_bound_of_max_total_tokens(run, glm):
    keys = ("--kv-budget", "20GiB", "--max-total-tokens", "100000")
    assert "max_total_tokens 100,000) in pages of 64 = 99,968" in run("estimate", glm, *keys, "--explain")[1]


def test_layer_range_is_read_as_a_list(run, glm):
    out = run("estimate", glm, "--layer-range", "[0,15]", "--kv-budget", "20GiB", "--json")[1]
    # 15 layers of 1152 B; owner layers among them: 0 1 2 6 10 14
    assert json.loads(out)["scenarios"]["elided"]["bytes_per_token"]["charged"] == 15 * 1152 + 6 * 132


def test_the_ledger_adds_up_to_the_memory_that_the_driver_reports(run, glm):
    code, out, _ = run("estimate", glm, "--offload", "--ledger")
    assert code == 0
    assert f"= {143771 * 2**20:,} B reported by the h200" in out.replace("\n  ", " ")
    ledger = out[out.index("ledger, as launched") :]
    taken = re.findall(r"^\S.*?  +([\d,]+)  +[\d.,]+  +gpu", ledger, re.MULTILINE)
    total = sum(int(number.replace(",", "")) for number in taken)
    assert f"GPU: {total:,} B in the ledger" in ledger
    assert re.search(r"host KV pool .* host +rank +engine_code", ledger)
    assert "B a rank × 8 ranks = " in ledger


def test_explain_shows_each_formula_with_its_source(run, glm):
    out = run("estimate", glm, *LOGGED, "--engine", "sglang@0.5.17", "--explain")[1]
    words = " ".join(out.split())
    assert "576 × 78 layers + 132 × 78 index layers = 55,224; int(55,224 × (1 + 1/78)) = 55,932" in words
    assert "144,017,769,627 B // 55,932 B in pages of 64 = 2,574,848" in words
    assert "source: SGLang 0.5.17: config_from_budget" in out
    assert "\nbaseline, as launched:\n" in out
    assert [f"\n{name}, where it differs:\n" in out for name in ("elided", "offload", "elided+offload")] == [True] * 3
    assert "requests by hot buffers: 1,981,504 device tokens // 4,160 a request = 476" in words


def test_explain_says_of_a_scenario_that_changes_nothing_that_it_is_the_same(run):
    out = run("estimate", "deepseek-v4-flash", "--explain")[1]  # no layer of it shares a top-k
    assert "\n\nelided: the same as baseline\n\noffload, where it differs:\n" in out


def test_a_grid_counts_the_requests_of_all_data_parallel_ranks(run, glm):
    keys = ("--kv-budget", "64GiB", "--max-running-requests", "64")
    out = run("estimate", glm, *keys, "--dp-attention", "1", "--dp-attention", "8")[1]
    assert "in all: requests of all data-parallel ranks; the other figures are of one\n" in out
    one, eight = (line.split() for line in out.splitlines() if line.startswith(("1 ", "8 ")))
    # dp_attention, as launched, row and its unit, tokens, requests, in all; 64 GiB // 92,628 B are 741,824 tokens
    assert (one[5:7], eight[5:7]) == (["22", "22"], ["8", "64"])


def test_explain_and_json_exclude_each_other(run, glm):
    assert run("estimate", glm, "--explain", "--json") == (
        2,
        "",
        "--explain is text\n  leave out --json or --explain\n",
    )


def test_a_plan_that_does_not_fit_is_printed_and_exits_with_1(run, glm):
    code, out, err = run("estimate", glm, "--gpu", "a100", "--tp", "2")
    assert code == 1
    assert _row(out, "fits") == ["NO", "NO", "NO", "NO"]
    assert err.startswith("elided does not fit: nothing is left for the cache")
    assert err.strip().removeprefix("elided ") in " ".join(out.split())
    assert out.endswith("\ndoes not fit as launched (elided)\n")
    code, out, err = run("estimate", glm, "--gpu", "a100", "--tp", "2", "--json")
    assert (code, json.loads(out)["scenarios"]["elided"]["fits"]) == (1, False)
    assert err.startswith("elided does not fit: ")


def test_a_name_cannot_move_the_cursor(run, tmp_path, glm):
    text = (tmp_path / "my_model.yaml").read_text().replace("name: my-glm", r'name: "\e[31m[bold]red"')
    (tmp_path / "my_model.yaml").write_text(text)
    assert run("estimate", glm)[1].startswith(r"\x1b[31m[bold]red: sglang")


def test_a_repeated_option_makes_a_grid_of_all_combinations(run, glm):
    code, out, err = run("estimate", glm, "--gpu", "h200", "--gpu", "gb300", "--tp", "8", "--context", "1k", "--json")
    assert (code, out) == (2, "")
    assert err.startswith("--context: '1k' is not valid")
    args = ("--gpu", "h200", "--gpu", "gb300", "--draft-layers", "0", "--draft-layers", "1", "--kv-budget", "30GiB")
    code, out, err = run("estimate", glm, *args, "--json")
    grid = json.loads(out)
    assert (code, err, grid["schema"], grid["refused"]) == (0, "", "hsplan.grid/1", [])
    assert [plan["options"] for plan in grid["plans"]] == [
        {"gpu": "h200", "draft_layers": 0},
        {"gpu": "h200", "draft_layers": 1},
        {"gpu": "gb300", "draft_layers": 0},
        {"gpu": "gb300", "draft_layers": 1},
    ]
    cells = [plan["scenarios"]["elided"]["bytes_per_token"]["charged"] for plan in grid["plans"]]
    # bf16 on H200, raw fp8 on GB300, 21 index layers, one draft layer
    assert cells[0] == 78 * 1152 + 21 * 132
    assert cells[1] == cells[0] + 1152 + 132
    assert cells[2] == 78 * 576 + 21 * 132
    assert cells[3] == cells[2] + 576 + 132


def test_the_grid_table_has_one_line_for_each_combination(run, glm):
    code, out, err = run("estimate", glm, "--gpu", "h200", "--gpu", "gb300", "--kv-budget", "100GiB")
    assert (code, err) == (0, "")
    head, _, *lines = out[: out.index("runnable gain: ")].splitlines()
    assert "\nrunnable gain: logical tokens of the scenario named" in out
    assert "\nnote: not verified against an original" in out
    # A note that not all plans have says whose it is.
    assert "\nnote on gpu=gb300: link rates as measured on H200, scaled" in out
    assert head.split() == "gpu as launched KV row logical tokens requests binding fits runnable gain".split()
    # 100 GiB // (78 × 1152 + 21 × 132) and // (78 × 576 + 21 × 132), in pages of 64
    assert [line.split()[:5] for line in lines] == [
        ["h200", "elided", "1,152", "B", "1,159,168"],
        ["gb300", "elided", "576", "B", "2,251,008"],
    ]


def test_a_grid_of_many_plans_has_only_the_notes_on_what_is_not_verified(run, glm):
    gpus = [word for gpu in ("h200", "gb300", "b200", "b300", "h20-3e") for word in ("--gpu", gpu)]
    out = run("estimate", glm, *gpus, "--kv-budget", "100GiB")[1]
    assert "note: not verified against an original" in out
    assert "note on" not in out


def test_the_grid_table_has_times_where_they_are_known(run, glm):
    grid = ("--gpu", "h200", "--gpu", "gb300", "--kv-budget", "100GiB", "--max-running-requests", "4")
    out = run("estimate", glm, *grid, "--step-ms", "{fixed: 12, per_request: 0.5}")[1]
    assert out.splitlines()[1].split() == "gpu launched row tokens requests binding ms tokens/s fits gain".split()
    # 4 requests: 12 + 4 × 0.5 = 14 ms, 4 / 0.014 tokens a second
    assert [line.split()[-7:-2] for line in out.splitlines()[3:5]] == [
        ["max_running", "14.0", "286", "yes", "+67.7"],
        ["max_running", "14.0", "286", "yes", "+32.9"],
    ]
    assert "swap-in" in run("estimate", glm, *grid, "--offload")[1]


def test_a_grid_of_equal_values_is_one_plan(run, glm):
    assert json.loads(run("estimate", glm, "--tp", "8", "--tp", "8", "--json")[1])["schema"] == "hsplan.plan/1"


def test_a_grid_goes_on_after_a_combination_that_is_refused(run, glm):
    code, out, err = run("estimate", glm, "--engine", "sglang", "--engine", "sglang@9.9", "--json")
    grid = json.loads(out)
    assert code == 3
    assert [plan["options"] for plan in grid["plans"]] == [{"engine": "sglang"}]
    assert [(entry["options"], entry["exit_code"]) for entry in grid["refused"]] == [({"engine": "sglang@9.9"}, 3)]
    assert err.startswith("engine=sglang@9.9: --release: SGLang '9.9' is not a release") or "'9.9' is not a" in err


def test_a_grid_of_refusals_is_one_error(run, glm):
    code, out, err = run("estimate", glm, "--engine", "sglang@9.8", "--engine", "sglang@9.9")
    assert (code, out) == (3, "")
    assert len(err.splitlines()) == 2


def test_a_grid_exits_with_1_when_a_combination_does_not_fit(run, glm):
    code, out, _ = run("estimate", glm, "--gpu", "h200", "--gpu", "l40s")
    assert code == 1
    assert any("NO" in line for line in out.splitlines())
    assert "does not fit: nothing is left" in out


def test_a_grid_has_at_most_10_000_combinations(run, glm):
    values = [arg for i in range(101) for arg in ("--context", str(i + 1), "--draft-layers", str(i))]
    assert run("estimate", glm, *values) == (
        2,
        "",
        "the options make 10,201 combinations\n  repeat fewer options: at most 10,000\n",
    )


@pytest.mark.parametrize("flag", ["--ledger", "--explain"])
def test_ledger_and_explain_are_for_one_plan(run, glm, flag):
    code, _, err = run("estimate", glm, "--tp", "4", "--tp", "8", flag)
    assert (code, err.splitlines()[0]) == (2, "--ledger and --explain are for one plan")


def test_one_request_is_no_plural(run):
    out = run("estimate", "glm-5.2-fp8", "--context", "131072", "--max-running-requests", "1")[1]
    assert " tokens, 1 request, max_running binds" in " ".join(out.split())
