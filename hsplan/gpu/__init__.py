"""Validation of a plan with real pools and kernels. Only this package imports torch and triton."""
