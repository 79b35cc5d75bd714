"""Weights: number formats, matrix bytes and the headers of local checkpoints. Sharding is the engine's business."""

from hsplan.weights.formats import Formats, kv_cache_is_fp8, matrix_bytes, named, of_quantization
from hsplan.weights.safetensors import FolderWeights, has_safetensors, read_folder

__all__ = [
    "FolderWeights",
    "Formats",
    "has_safetensors",
    "kv_cache_is_fp8",
    "matrix_bytes",
    "named",
    "of_quantization",
    "read_folder",
]
