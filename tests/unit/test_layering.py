"""The order of the modules, read from the files themselves: an import inside a function counts like any other."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import hsplan

PACKAGE = Path(hsplan.__file__).resolve().parent
CHECKOUT = Path(__file__).resolve().parents[2]

# A module imports only from those above it; inside one package imports are free.
CORE = (
    "errors", "files", "units", "hardware", "linkrate", "linkcurve", "missrate", "steptime", "swapin", "version",
    "spec", "fitted", "families", "weights", "host", "engines", "calibration", "wholestep", "advice", "capacity",
    "result", "planner", "trial", "tuning", "measurement", "ranks",
)  # fmt: skip
# Leaves stand below the whole core. A leaf imports from the core and from the leaves above it.
LEAVES = ("workload", "calibrate", "gpu", "report", "cli", "__main__")
ORDER = (*CORE, *LEAVES)

EVERYWHERE = {"msgspec", "yaml"}
THIRD_PARTY = {
    "cli": {"typer", "rich"},
    "gpu": {"torch", "triton", "pynvml", "hsplan_kernels"},
    "report": {"numpy", "jinja2", "matplotlib"},
    "workload": {"numpy"},
}
HEAVY = ("torch", "triton", "numpy", "typer", "rich", "jinja2", "matplotlib", "pydantic")


def module_of(file: Path) -> str:
    """The first name below hsplan: `spec` for hsplan/spec/load.py, empty for hsplan/__init__.py."""
    first = file.relative_to(PACKAGE).parts[0]
    name = first.removesuffix(".py")
    return "" if name == "__init__" else name


def absolute(node: ast.ImportFrom, file: Path) -> str:
    """The module that an import names, with the dots of a relative one resolved."""
    if node.level == 0:
        return node.module or ""
    parts = ["hsplan", *file.relative_to(PACKAGE).parent.parts]
    return ".".join([*parts[: len(parts) - node.level + 1], *((node.module or "").split(".") if node.module else [])])


def imports_of(file: Path) -> list[tuple[int, str]]:
    """Line and full name of everything that a file imports, anywhere in it."""
    found = []
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"), str(file))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = absolute(node, file)
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__"):
                found.append((node.lineno, str(node.args[0].value)))
    return found


FILES = sorted(PACKAGE.rglob("*.py"))
IDS = [str(file.relative_to(PACKAGE)) for file in FILES]


def own_offences(file: Path) -> list[str]:
    here = module_of(file)
    allowed = set(ORDER[: ORDER.index(here) + 1]) if here else set(CORE)
    found = []
    for line, name in imports_of(file):
        parts = name.split(".")
        if parts[0] != "hsplan":
            continue
        target = parts[1] if len(parts) > 1 and parts[1] in ORDER else ""
        if target not in allowed and (target or here in CORE):
            found.append(f"{file.relative_to(PACKAGE)}:{line}: {here or 'the package'} imports {name}")
    return found


def foreign_offences(file: Path) -> list[str]:
    here = module_of(file)
    allowed = EVERYWHERE | THIRD_PARTY.get(here, set()) | {"hsplan"} | set(sys.stdlib_module_names)
    return [
        f"{file.relative_to(PACKAGE)}:{line}: {here or 'the package'} imports {name}"
        for line, name in imports_of(file)
        if name.split(".")[0] not in allowed
    ]


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_a_module_imports_only_from_modules_above_it(file):
    assert own_offences(file) == []


@pytest.mark.parametrize("file", FILES, ids=IDS)
def test_a_module_imports_only_the_libraries_that_it_is_meant_to(file):
    assert foreign_offences(file) == []


def test_the_order_names_every_module_on_disk_and_the_core_is_complete():
    on_disk = {module_of(file) for file in FILES} - {""}
    assert on_disk - set(ORDER) == set(), "a new module needs its place in ORDER"
    assert set(CORE) - on_disk == set(), "a module of the core is gone"


def test_lazy_and_type_checking_imports_are_seen(tmp_path, monkeypatch):
    source = (
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n"
        "    import torch\n"
        "def late():\n"
        "    from hsplan.planner import plan\n"
        "    from .spec import load\n"
        "    __import__('rich')\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path)
    file = tmp_path / "errors.py"
    file.write_text(source)
    assert own_offences(file) == [
        "errors.py:5: errors imports hsplan.planner.plan",
        "errors.py:6: errors imports hsplan.spec.load",
    ]
    assert foreign_offences(file) == ["errors.py:3: errors imports torch", "errors.py:7: errors imports rich"]


def test_importing_hsplan_loads_no_heavy_library():
    code = f"import sys, hsplan; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_planning_loads_no_heavy_library():
    code = (
        "import sys, hsplan\n"
        "model = {'architectures': ['GlmMoeDsaForCausalLM'], 'num_hidden_layers': 2, 'kv_lora_rank': 512,\n"
        "         'qk_rope_head_dim': 64, 'index_topk': 2048, 'index_head_dim': 128}\n"
        "hsplan.plan({'model': model, 'deployment': {'gpu': 'h200', 'tp': 1, 'kv_budget': '1GiB'}}).to_dict()\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_kernels_folder_is_no_package_of_that_name():
    assert not (CHECKOUT / "kernels" / "__init__.py").exists()


def test_hsplan_kernels_can_be_imported():
    assert importlib.import_module("hsplan_kernels").__doc__


def test_nothing_in_hsplan_imports_the_name_kernels():
    assert [(file, line) for file in FILES for line, name in imports_of(file) if name.split(".")[0] == "kernels"] == []
