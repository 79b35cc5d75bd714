"""Specs: what a user writes, read and checked."""

from hsplan.spec.load import Loaded, changed, load_spec
from hsplan.spec.schema import Deployment, Offload, Spec, Weights, Workload
from hsplan.spec.source import shipped_names

__all__ = [
    "Deployment",
    "Loaded",
    "Offload",
    "Spec",
    "Weights",
    "Workload",
    "changed",
    "load_spec",
    "shipped_names",
]
