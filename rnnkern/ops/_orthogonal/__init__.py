"""Orthogonal and unitary weights, and the recurrence through rotations."""
