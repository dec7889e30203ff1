"""The thread sanitizer over the CPU kernels of the level plain, and the tests that there are: a file for each level, so
that they run side by side."""

from pathlib import Path

from python_tests.threads.sanitizer import ROOT, check_level


def test_no_races_and_the_same_bits_for_every_team(tmp_path):
    check_level("plain", tmp_path)


def test_every_level_has_a_file():
    levels = {path.stem.removeprefix("cpu_") for path in (ROOT / "csrc/recurrence").glob("cpu_*.cpp")}
    assert {path.stem.removeprefix("test_") for path in Path(__file__).parent.glob("test_*.py")} == levels
