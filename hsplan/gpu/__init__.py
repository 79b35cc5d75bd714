"""The GPU side of `hsplan validate`: the only part of hsplan that imports torch, triton, pynvml and the kernels."""
