"""What runs on a machine with a GPU: first proofs that kernels work, then their speed."""
