"""Linear scans and running moments."""
