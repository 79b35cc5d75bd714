"""Reading YAML and JSON: every way to write a bad file ends in one InputError with its place, soon."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hsplan import InputError
from hsplan.spec.document import parse_json, parse_yaml
from hsplan.spec.source import find


def refused(parse, text, origin="a.yaml", seconds=5):
    """The printed lines of the error, which must come within seconds."""
    start = time.process_time()
    with pytest.raises(InputError) as caught:
        parse(text, origin)
    assert time.process_time() - start < seconds
    lines = caught.value.lines()
    assert caught.value.exit_code == 2
    assert 1 <= len(lines) <= 2
    assert all(line.isprintable() and len(line) < 400 for line in lines)
    return lines


# YAML


def test_a_yaml_mapping_becomes_plain_data_with_the_line_of_every_key():
    document = parse_yaml("model:\n  layers: 78\n  names: [a, 'b']\n\nname: x\n", "a.yaml")
    assert document.data == {"model": {"layers": 78, "names": ["a", "b"]}, "name": "x"}
    assert document.where("model") == "a.yaml:1: model"
    assert document.where("model.layers") == "a.yaml:2: model.layers"
    assert document.where("name") == "a.yaml:5: name"


def test_a_missing_key_is_placed_at_the_nearest_key_above_it():
    document = parse_yaml("name: x\nmodel:\n  layers: 78\n", "a.yaml")
    assert document.where("model.heads") == "a.yaml:2: model.heads"
    assert document.where("deployment.gpu") == "a.yaml:1: deployment.gpu"


def test_a_duplicate_yaml_key_is_refused_with_both_lines():
    head, remedy = refused(parse_yaml, "model:\n  a: 1\n  b: 2\n  a: 3\n")
    assert head == "a.yaml:4: model.a stands twice, first in line 2"
    assert remedy == "  keep one"


def test_a_duplicate_section_is_refused_with_both_lines():
    assert (
        refused(parse_yaml, "model: {}\n# a comment\nmodel: {}\n")[0] == "a.yaml:3: model stands twice, first in line 1"
    )


def test_the_same_key_in_two_sections_is_no_duplicate():
    assert parse_yaml("a: {x: 1}\nb: {x: 2}\n", "a.yaml").data == {"a": {"x": 1}, "b": {"x": 2}}


def test_an_alias_is_read_as_what_it_stands_for():
    assert parse_yaml("a: &x [1, 2]\nb: *x\n", "a.yaml").data == {"a": [1, 2], "b": [1, 2]}


def test_an_alias_bomb_is_refused():
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    assert "more than 200,000 values once the aliases are written out" in refused(parse_yaml, "\n".join(rows))[0]


def test_a_bomb_of_mappings_is_refused():
    rows = ["a0: &a0 {x: 1, y: 2}"]
    rows += [f"a{i}: &a{i} {{x: *a{i - 1}, y: *a{i - 1}}}" for i in range(1, 30)]
    refused(parse_yaml, "\n".join(rows))


@pytest.mark.parametrize("text", ["a: &a [*a]\n", "a: &a {b: *a}\n", "a: &a [1, [2, *a]]\n"])
def test_an_alias_to_the_value_that_holds_it_is_refused(text):
    assert refused(parse_yaml, text)[0].startswith("a.yaml:1")


def test_a_long_chain_of_aliases_is_refused_like_deep_nesting():
    rows = ["a0: &a0 [x]", *(f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 2000))]
    refused(parse_yaml, "\n".join(rows))


def test_an_unknown_alias_is_refused_with_its_line():
    assert refused(parse_yaml, "a: 1\nb: *nobody\n")[0].startswith("a.yaml:2: not valid YAML: ")


@pytest.mark.parametrize(
    "text",
    [
        "a: " + "[" * 100_000,
        "a: " + "[" * 60 + "]" * 60,
        "- " * 50_000,
        "".join(" " * i + "a:\n" for i in range(60)),
        "{a: " * 5_000,
    ],
    ids=["open flow", "closed flow", "block list", "block mapping", "flow mapping"],
)
def test_absurd_nesting_is_refused(text):
    assert "nest" in refused(parse_yaml, text)[0]


def test_nesting_that_a_config_may_have_is_read():
    text = "a: " + "[" * 30 + "]" * 30
    assert parse_yaml(text, "a.yaml").data["a"] == eval("[" * 30 + "]" * 30)  # noqa: S307


def test_a_merge_key_is_refused_with_its_line():
    assert refused(parse_yaml, "base: &b {x: 1}\nmore:\n  <<: *b\n")[0].startswith("a.yaml:3: ")


@pytest.mark.parametrize(
    "text",
    [
        "a: !!python/object/apply:os.system ['true']\n",
        "a: !!python/name:os.system ''\n",
        "a: !!python/object:subprocess.Popen {}\n",
        "a: !mine 1\n",
        "a: !!set {x, y}\n",
        "a: !!omap [x: 1]\n",
        "a: !!binary aGVsbG8=\n",
        "!!python/object:object {}\n",
    ],
)
def test_a_tag_is_refused_and_nothing_is_built_from_it(text):
    assert refused(parse_yaml, text)[0].startswith("a.yaml:1")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("1: x\n", "1"),
        ("true: x\n", "true"),
        ("null: x\n", "null"),
        ("2026-01-01: x\n", "2026-01-01"),
        ("1.5: x\n", "1.5"),
    ],
)
def test_a_key_that_is_no_text_is_refused(text, key):
    assert refused(parse_yaml, text) == [f"a.yaml:1: a key must be a text, not {key}", "  quote it"]


@pytest.mark.parametrize("text", ["? [a, b]\n: x\n", "? {a: b}\n: x\n"])
def test_a_key_that_is_a_collection_is_refused(text):
    assert refused(parse_yaml, text)[0].startswith("a.yaml:1: a key must be a text")


@pytest.mark.parametrize("value", ["2026-06-12", "2026-06-12 10:00:00", "2026-06-12T10:00:00Z"])
def test_a_date_is_refused_with_the_advice_to_quote_it(value):
    head, remedy = refused(parse_yaml, f"a: 1\nrelease: {value}\n")
    assert head.startswith("a.yaml:2: ")
    assert "quote it" in remedy


def test_a_number_with_an_exponent_needs_no_point():
    data = parse_yaml("a: 1e-1\nb: -2E+3\nc: '1e5'\nd: 1e999\ne: 5.e2\n", "a.yaml").data
    assert data == {"a": 0.1, "b": -2000.0, "c": "1e5", "d": "1e999", "e": 500.0}


def test_a_quoted_date_is_a_text():
    assert parse_yaml("a: '2026-06-12'\n", "a.yaml").data == {"a": "2026-06-12"}


def test_a_dated_build_and_a_release_need_no_quotes():
    assert parse_yaml("a: main-2026-06-12\nb: 0.5.23\n", "a.yaml").data == {"a": "main-2026-06-12", "b": "0.5.23"}


@pytest.mark.parametrize("value", ["1:30", "190:20:30", "1:30.5"])
def test_a_number_in_base_sixty_is_never_read_as_seconds(value):
    """YAML 1.1 reads 1:30 as 90; who writes it in a spec means something else."""
    try:
        data = parse_yaml(f"a: {value}\n", "a.yaml").data
    except InputError:
        return
    assert data == {"a": value}


@pytest.mark.parametrize("value", ["010", "010000"])
def test_a_number_with_a_leading_zero_is_never_read_in_base_eight(value):
    """YAML 1.1 reads 010 as 8 and YAML 1.2 as 10: whoever wrote it, one of the two is not meant."""
    try:
        data = parse_yaml(f"a: {value}\n", "a.yaml").data
    except InputError:
        return
    assert data == {"a": value}


def test_nan_and_infinity_are_numbers_for_the_schema_to_refuse():
    data = parse_yaml("a: .nan\nb: .inf\nc: -.inf\n", "a.yaml").data
    assert data["a"] != data["a"]
    assert (data["b"], data["c"]) == (float("inf"), float("-inf"))


def test_an_unreadable_number_is_refused_with_its_line():
    head = refused(parse_yaml, "a: 1\nb: " + "9" * 5000 + "\n")[0]
    assert head.startswith("a.yaml:2: not a readable number: 999")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a:\n\tb: 1\n", 2),
        ("a: 1\nb: [1,\n", 3),
        ("a: 'x\n", 2),
        ("a: 1\n b: 2\n", 2),
        ("a: b: c\n", 1),
        ("a: %x\n", 1),
        ("a: @x\n", 1),
    ],
)
def test_broken_yaml_is_refused_with_its_line(text, line):
    assert refused(parse_yaml, text)[0].startswith(f"a.yaml:{line}: not valid YAML: ")


@pytest.mark.parametrize(
    "text", ["", "\n\n", "# only a comment\n", "---\n", "null\n", "~", "x", "42", "[1, 2]", "- a\n- b\n"]
)
def test_what_is_no_mapping_is_refused(text):
    assert refused(parse_yaml, text) == ["a.yaml:1: not a mapping", "  a spec is a mapping that starts with `model:`"]


def test_several_documents_in_one_file_are_refused():
    assert refused(parse_yaml, "a: 1\n---\nb: 2\n")[0].startswith("a.yaml:2: not valid YAML: ")


@pytest.mark.parametrize("text", ["a: \x00\n", "a: \x07\n", "\x1b[2J: 1\n", "a: \ufffe\n", "a: \ud800\n"])
def test_control_characters_are_refused_and_not_printed(text):
    assert refused(parse_yaml, text)[0].startswith("a.yaml")


def test_escaped_control_characters_come_back_as_escapes_in_messages():
    assert "\\x1b" in refused(parse_yaml, '"\\e[2J": 1\n"\\e[2J": 2\n')[0]


def test_a_file_of_millions_of_values_is_refused_soon():
    refused(parse_yaml, "a: [" + "b," * 1_000_000 + "]\n", seconds=2)


def test_comments_that_say_unverified_are_kept():
    text = "# unverified: the number of experts\nmodel: {}\n# unverified:   max positions  \n"
    assert parse_yaml(text, "a.yaml").unverified == ("the number of experts", "max positions")


# JSON


def test_a_json_object_becomes_plain_data_with_the_line_of_every_key():
    document = parse_json('{\n  "a": 1,\n  "b": {"c": [true, null]}\n}\n', "config.json")
    assert document.data == {"a": 1, "b": {"c": [True, None]}}
    assert document.where("a") == "config.json:2: a"
    assert document.where("model.c") == "config.json:3: model.c"
    assert document.where("nowhere") == "config.json:1: nowhere"


def test_a_duplicate_json_key_is_refused():
    head, remedy = refused(parse_json, '{\n "a": 1,\n "a": 2\n}', "config.json")
    assert head == "config.json:2: a: the key stands twice"
    assert remedy == "  keep one"


def test_a_duplicate_json_key_is_refused_inside_an_object_too():
    assert "stands twice" in refused(parse_json, '{"b": {"a": 1, "a": 2}}', "config.json")[0]


def test_a_duplicate_behind_many_json_keys_is_found_soon():
    keys = ",".join(f'"k{i}": 1' for i in range(15_000))
    refused(parse_json, "{" + keys + ', "k14999": 2}', "config.json", seconds=1)


@pytest.mark.parametrize(
    "text", ["", " ", "{", '{"a": ', '{"a": 1', '{"a": 1,}', "{'a': 1}", '{"a": 1} {"b": 2}', '{"a": "\n"}', "nul"]
)
def test_broken_or_truncated_json_is_refused_with_its_line(text):
    assert refused(parse_json, text, "config.json")[0].startswith("config.json:1: not valid JSON: ")


def test_the_line_of_a_json_error_is_that_of_the_error():
    assert refused(parse_json, '{\n "a": 1,\n "b": oops\n}', "config.json")[0].startswith(
        "config.json:3: not valid JSON: "
    )


@pytest.mark.parametrize("text", ["[]", "1", '"x"', "null", "NaN"])
def test_json_that_is_no_object_is_refused(text):
    assert refused(parse_json, text, "config.json") == ["config.json:1: not a JSON object"]


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a": ' * 100_000, '{"a": ' + "[" * 50_000 + "]" * 50_000 + "}"])
def test_deeply_nested_json_is_refused(text):
    assert "not valid JSON" in refused(parse_json, text, "config.json")[0]


def test_a_json_number_of_5000_digits_is_refused():
    assert "not valid JSON" in refused(parse_json, '{"a": ' + "1" * 5000 + "}", "config.json")[0]


# Files


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    (tmp_path / "a.yaml").write_bytes(b"\xef\xbb\xbfmodel: {}\n")
    assert find(tmp_path / "a.yaml").document.data == {"model": {}}


@pytest.mark.parametrize("raw", [b"a: \xff\n", "a: é\n".encode("latin-1"), "a: 1\n".encode("utf-16"), b"\x80\x81"])
def test_a_file_that_is_not_utf_8_is_refused(tmp_path, raw):
    (tmp_path / "a.yaml").write_bytes(raw)
    with pytest.raises(InputError) as caught:
        find(tmp_path / "a.yaml")
    head, remedy = caught.value.lines()
    assert head.startswith(f"{tmp_path}/a.yaml: byte ")
    assert head.endswith(" is not UTF-8")
    assert remedy == "  save the file as UTF-8"


def test_a_file_larger_than_any_spec_is_refused_unread(tmp_path):
    with (tmp_path / "a.yaml").open("wb") as file:
        file.truncate(9 * 2**20)
    with pytest.raises(InputError, match="is larger than 8 MiB; no spec is"):
        find(tmp_path / "a.yaml")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text):
    for parse in (parse_yaml, parse_json):
        try:
            data = parse(text, "a").data
        except InputError as error:
            data, lines = {}, error.lines()
            assert "".join(lines).isprintable()
        assert isinstance(data, dict)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda kids: st.lists(kids) | st.dictionaries(st.text(), kids),
    )
)
def test_data_written_as_json_comes_back_unchanged(data):
    assert parse_json(json.dumps({"a": data}), "config.json").data == {"a": data}
