"""The thread sanitizer over the CPU kernels of the level avx512_bf16."""

from python_tests.threads.sanitizer import check_level


def test_no_races_and_the_same_bits_for_every_team(tmp_path):
    check_level("avx512_bf16", tmp_path)
