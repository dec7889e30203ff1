"""Linear scans and moment filters."""
