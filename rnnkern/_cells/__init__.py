"""Cells that users write: an equation in, kernels out."""
