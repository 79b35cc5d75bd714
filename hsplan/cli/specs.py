"""`hsplan specs`: the shipped specs listed, one model shown, a config.json made a spec, the schema of all."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any

import typer

from hsplan.cli.figures import NONE, number
from hsplan.cli.importing import imported
from hsplan.cli.modelview import ModelView, comments, legend, pattern_rows, ranges, view
from hsplan.cli.output import emit, emit_json, wrapped
from hsplan.cli.tables import table
from hsplan.errors import printable
from hsplan.spec import shipped_names

EXAMPLE = "Example: hsplan specs show glm-5.2-nvfp4"
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write to FILE, whole or not at all.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

app = typer.Typer(no_args_is_help=True, help="Specs: list, show, import from config.json, JSON Schema.")


@app.command("list", epilog="Example: hsplan specs list")
def list_specs(*, as_json: AsJson = False, output: Output = None) -> None:
    """List the shipped specs."""
    views = {name: view(name) for name in shipped_names()}
    if as_json:
        emit_json([_summary(name, shown) for name, shown in views.items()], output)
        return
    heads = ["spec", "architecture", "layers", "owner", "skip", "billions", "GPUs", "verified"]
    emit(table(heads, [_row(name, shown) for name, shown in views.items()], left=(0, 1, 6, 7)), output)


@app.command("show", epilog=EXAMPLE)
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A shipped spec, a file or a model folder.")],
    *,
    release: Annotated[
        str, typer.Option("--release", metavar="NAME", help="SGLang release whose schedule rules count.")
    ] = "latest",
    as_json: AsJson = False,
    output: Output = None,
) -> None:
    """Show one model: its fields, which layers compute top-k, its parameters and sources."""
    shown = view(name, release)
    if as_json:
        emit_json(_summary(name, shown), output)
    else:
        emit("\n".join(_lines(name, shown)), output)


@app.command("import", epilog="Example: hsplan specs import GLM-5.2/config.json --gpu h200 --tp 8 -o glm.yaml")
def import_config(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A config.json, or a folder with one.")],
    *,
    gpu: Annotated[str, typer.Option("--gpu", metavar="NAME", help="The card to plan for: h200, gb300, ...")],
    tp: Annotated[int, typer.Option("--tp", metavar="N", help="Tensor-parallel size.")],
    output: Output = None,
) -> None:
    """Make a spec of a model's config.json, and read it back to check it."""
    emit(imported(path, gpu=gpu, tp=tp), output)


@app.command("schema", epilog="Example: hsplan specs schema -o hsplan.schema.json")
def schema(*, output: Output = None) -> None:
    """Print the JSON Schema of a spec, for editors."""
    from hsplan.spec.json_schema import spec_schema  # noqa: PLC0415 - only this command needs it

    emit_json(spec_schema(), output)


def _row(name: str, shown: ModelView) -> list[str]:
    deployment = shown.loaded.spec.deployment
    return [
        name,
        re.sub("(Sparse)?(For)?(CausalLM|ConditionalGeneration)$", "", shown.model.architecture),
        str(len(shown.plan.pattern)),
        str(len(shown.plan.owner_ids)),
        str(shown.plan.skip_layers),
        _billions(shown.parameters),
        f"{deployment.gpu}, tp {deployment.tp}",
        "in part" if shown.loaded.unverified else "yes",
    ]


def _billions(count: int | None) -> str:
    return NONE if count is None else f"{count / 10**9:,.1f}"


def _summary(name: str, shown: ModelView) -> dict[str, Any]:
    model, plan, deployment = shown.model, shown.plan, shown.loaded.spec.deployment
    with_mtp = None if shown.parameters is None else shown.parameters + (shown.mtp_parameters or 0)
    return {
        "name": name,
        "family": model.family,
        "architecture": model.architecture,
        "release": shown.release,
        "layers": len(plan.pattern),
        "index_owner_layers": len(plan.owner_ids),
        "skip_topk_layers": plan.skip_layers,
        "index_owner_ids": plan.owner_ids,
        "pattern": plan.pattern,
        "parameters": shown.parameters,
        "parameters_with_mtp": with_mtp,
        "deployment": None if shown.source.is_config else {"gpu": deployment.gpu, "tp": deployment.tp},
        "unverified": list(shown.loaded.unverified),
    }


def _lines(name: str, shown: ModelView) -> list[str]:
    model, plan = shown.model, shown.plan
    summary = _summary(name, shown)
    owners = f"{len(plan.owner_ids)} compute top-k, {plan.skip_layers} reuse it" if plan.has_indexer else "no indexer"
    facts = {
        "layers": f"{len(plan.pattern)}: {owners}",
        "owner layers": ranges(plan.owner_ids) or NONE,
        "KV row": model.kv_words,
        "indexer": f"top {model.index_topk}, head {model.index_head_dim}" if plan.has_indexer else NONE,
        "attention heads": number(model.num_attention_heads),
        "positions": number(model.max_position_embeddings),
        "parameters": number(shown.parameters) if not model.missing else f"unknown without {', '.join(model.missing)}",
        "  with MTP": number(summary["parameters_with_mtp"]),
        "MTP layers": str(model.mtp_layers),
    }
    if summary["deployment"]:
        facts["deployment"] = "{gpu}, tp {tp}".format(**summary["deployment"])
    return [
        f"{printable(name)}: {model.architecture}, family {model.family}",
        *(wrapped(f"  {label:<16} ", text, indent=19) for label, text in facts.items()),
        "",
        f"layers by SGLang {shown.release}: {legend(plan)}",
        *pattern_rows(plan),
        "",
        *(wrapped("# ", text) for text in ([] if shown.source.is_config else comments(name))),
        *(wrapped("note: ", text) for text in model.notes),
        *(wrapped("not verified: ", text) for text in shown.loaded.unverified),
        *(wrapped("ignored fields: ", ", ".join(fields)) for fields in [model.ignored_fields] if fields),
    ]
