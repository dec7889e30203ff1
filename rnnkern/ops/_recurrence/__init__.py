"""The recurrence through any cell."""
