"""Triton kernels, for work that is parallel over matrices or over time. Importing this does not import triton."""
