"""Benchmarks and training runs: one harness, one module of cases per operator family, results per device."""
