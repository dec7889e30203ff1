"""Similarity of a few objects, and the memory of an emergent symbol binding network."""
