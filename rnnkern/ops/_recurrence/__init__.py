"""The recurrence operator, for any cell."""
