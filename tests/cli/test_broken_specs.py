"""Fifty specs with one thing broken, through the real command: planned or refused by name, never a traceback."""

import random

import pytest
from spec_text import GLM_5_2

BROKEN_VALUES = (
    "-1", "0", "1e999", ".nan", ".inf", "9" * 400, "yes", "~", "''", "[]", "{}", "[[[]]]", "{a: {b: c}}", "2026-01-01",
    "010", "1:30", "!!python/name:os.system", "*unknown", "&a [*a]", "\x1b[2J", "'\u202e'", "8.5", "'8'", "x" * 70_000,
)  # fmt: skip
BROKEN_TEXT = (b"\xff", b"\x00", b"\t", b"{", b"]", b": : ", b"---\n", b"? ", b"\xed\xa0\x80", b"\r", b"[" * 3000)


def broken(seed):
    """The GLM-5.2 spec with one value, key, line or byte broken."""
    dice = random.Random(seed)  # noqa: S311
    lines = GLM_5_2.splitlines()
    row = dice.choice([at for at, line in enumerate(lines) if ": " in line and not line.startswith("#")])
    key, value = lines[row].split(": ", 1)
    kind = ("value", "value", "key", "delete", "text")[seed % 5]
    if kind == "value":
        lines[row] = f"{key}: {dice.choice(BROKEN_VALUES)}"
    elif kind == "key":
        at = dice.randrange(len(key) - len(key.lstrip()), len(key))
        lines[row] = f"{key[:at]}{key[at + 1 :]}: {value}"
    elif kind == "delete":
        del lines[row]
    raw = "\n".join(lines).encode(errors="surrogatepass")
    if kind == "text":
        at = dice.randrange(len(raw))
        raw = raw[:at] + dice.choice(BROKEN_TEXT) + raw[at:]
    return raw


@pytest.mark.parametrize("seed", range(50))
def test_a_broken_spec_is_planned_or_refused_by_the_command(process, tmp_path, seed):
    raw = broken(seed)
    path = tmp_path / "spec.yaml"
    path.write_bytes(raw)
    done = process("estimate", "spec.yaml", "--json")
    assert done.returncode in (0, 1, 2, 3), done.stderr.decode()
    assert b"Traceback" not in done.stderr
    assert len(done.stderr) < 5000
    assert path.read_bytes() == raw
    if done.returncode in (2, 3):
        assert done.stdout == b""
        assert b"spec.yaml" in done.stderr
        assert b"\x1b[2J" not in done.stderr
