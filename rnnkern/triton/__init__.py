"""Triton kernels, for operators that are parallel over matrices or over time. Importing this does not import triton."""
