"""Triton kernels of hsplan and their plain references."""

__version__ = "0.1.0"
