"""The thread sanitizer over the CPU kernels of the level avx2."""

from python_tests.threads.sanitizer import check_level


def test_no_races_and_the_same_bits_for_every_team(tmp_path):
    check_level("avx2", tmp_path)
