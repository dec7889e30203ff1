"""Attention over past states."""
