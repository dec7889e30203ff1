"""Triton kernels, for work that is parallel over matrices. Importing this does not import triton."""
