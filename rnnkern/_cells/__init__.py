"""Compiles the equations of users' cells into kernels."""
