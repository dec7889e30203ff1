"""Neither a damaged library of a cell nor one of another user reaches the loader, and nothing incomplete stays behind.

There is a table of damages and one of compilers that fail. In most tests the compiler is a script that copies a
finished library.
"""

import os
import resource
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import rnnkern
from python_tests.cells import samples
from rnnkern import _compiler, _extension
from rnnkern._cells import library

ROOT = Path(__file__).parents[2]
CELL = library._known[samples.without_product.name]
RUN = """
import sys
from python_tests.cells import samples
from rnnkern._cells import library
print("ready", flush=True)
sys.stdin.readline()
assert library.refusal(samples.without_product.name) is None
print(samples.call(samples.without_product)[0].sum().item())
"""

pytestmark = pytest.mark.skipif(not _extension.available, reason=f"no compiled part: {_extension.reason}")


@pytest.fixture(scope="module")
def finished() -> bytes:
    """A library, from the tests' own cache."""
    return _compiler.read_file(library.library_of(CELL, False))


@pytest.fixture
def compile_with(monkeypatch, tmp_path, finished):
    """A function that makes a shell script the compiler, and returns the file with a line for each run of it."""
    (tmp_path / "finished").write_bytes(finished)

    def use(script: str) -> Path:
        text = f"echo >> {tmp_path}/runs\n{script.format(finished=tmp_path / 'finished')}\n"
        (tmp_path / "compiler.sh").write_text(text)
        monkeypatch.setenv("CXX", f"sh {tmp_path}/compiler.sh")
        return tmp_path / "runs"

    return use


@pytest.fixture
def runs(compile_with) -> Path:
    return compile_with("cp {finished} cell.so")


@pytest.fixture
def temporary(monkeypatch, tmp_path) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path, finished, temporary) -> Path:
    """An empty cache."""
    monkeypatch.setenv("RNNKERN_CACHE_DIR", str(tmp_path / "cache"))
    _compiler.warn_of_folder.cache_clear()
    return tmp_path / "cache"


def count(runs: Path) -> int:
    return len(runs.read_text().splitlines())


def of_others(path: Path, monkeypatch) -> None:
    """Gives a file to another user, or makes this one another."""
    if os.geteuid() == 0:
        os.chown(path, 1234, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


# ---- damaged files


def damaged(kept: bytes):
    """A file with one byte changed, at many places, cut to many lengths, and continued."""
    for k in {*range(0, len(kept), 41), *range(len(kept) - 64, len(kept))}:
        yield kept[:k] + bytes([kept[k] ^ (1 << k % 8)]) + kept[k + 1 :]
    yield from (kept[:length] for length in {*range(0, len(kept), 211), *range(len(kept) - 64, len(kept))})
    yield from (kept + b"\0", bytes(len(kept)))


def test_whatever_is_damaged_is_noticed(tmp_path, finished):
    place = tmp_path / "cell.so"
    assert _compiler.write_file(place, finished)
    assert _compiler.read_file(place) == finished
    for kept in damaged(place.read_bytes()):
        place.write_bytes(kept)
        with pytest.warns(UserWarning, match="is damaged"):
            assert _compiler.read_file(place) is None


def run_at_once(processes: int) -> list[str]:
    """Runs the cell in new processes, and returns what they print to standard error."""
    pipe = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    started = [subprocess.Popen([sys.executable, "-Walways", "-c", RUN], cwd=ROOT, text=True, **pipe)
               for _ in range(processes)]  # fmt: skip
    for process in started:
        assert process.stdout.readline() == "ready\n", process.stderr.read()
    for process in started:
        process.stdin.write("go\n")
        process.stdin.flush()
    printed, said = zip(*(process.communicate(timeout=100) for process in started), strict=True)
    assert [process.returncode for process in started] == [0] * processes, said
    assert len(set(printed)) == 1
    return said


@pytest.mark.proof
def test_two_processes_that_find_a_damaged_library_run(cache, runs, finished):
    """The loader would end them, at a page that is missing."""
    place = library.library_of(CELL, False)
    place.write_bytes(place.read_bytes()[:12000])
    said = run_at_once(2)
    assert "is damaged" in "".join(said)
    assert all(text.count("is damaged") <= 1 for text in said)
    assert count(runs) in (2, 3)
    assert _compiler.read_file(place) == finished
    assert list(cache.iterdir()) == [place]


def not_loaded_yet(number: float) -> str:
    """The name of a new cell."""
    return rnnkern.cell(lambda u, r, h: torch.tanh(u + number * r)).name


def test_a_library_that_does_not_load_is_compiled_again(runs, finished):
    """It is whole, but of another system, for example."""
    name = not_loaded_yet(2.375)
    place = library.library_of(library._known[name], False)
    _compiler.write_file(place, b"no library")
    assert library.refusal(name) is None
    assert count(runs) == 2
    assert _compiler.read_file(place) == finished


def test_what_never_loads_has_a_remedy(compile_with):
    runs = compile_with("head -c 4096 /dev/zero > cell.so")
    why = library.refusal(not_loaded_yet(2.625))
    assert "invalid ELF header" in why
    assert "set RNNKERN_CACHE_DIR to a folder from which libraries may be loaded" in _extension.remedies[why]
    assert count(runs) == 2


def test_a_file_is_read_while_others_replace_it(tmp_path, finished):
    place, ends = tmp_path / "cell.so", threading.Event()
    contents = [finished, finished[: len(finished) // 2]]
    _compiler.write_file(place, finished)

    def replace(content):
        while not ends.is_set():
            assert _compiler.write_file(place, content)

    with ThreadPoolExecutor(2) as writers:
        running = writers.map(replace, contents)
        found = [_compiler.read_file(place) for _ in range(300)]  # a warning would be an error
        ends.set()
    assert list(running) == [None, None]
    assert all(content in contents for content in found)


# ---- folders and owners


@pytest.mark.parametrize("what", ["folder", "file"])
def test_nothing_of_another_user_is_loaded(what, cache, runs, temporary, monkeypatch):
    place = library.library_of(CELL, False)
    kept = place.read_bytes()
    of_others(cache if what == "folder" else place, monkeypatch)
    with pytest.warns(UserWarning, match=r"belongs to the user with ID \d+, not to you or root; `chown") as given:
        own, other = [library.library_of(CELL, False) for _ in range(2)]
    assert own != other
    assert len(given) == 1
    assert "Set RNNKERN_CACHE_DIR to a writable folder of your own" in str(given[0].message)
    assert own.is_relative_to(temporary)
    assert place.read_bytes() == kept


@pytest.mark.parametrize("blocked", ["by a file", "by a folder", "by the system"])
def test_where_nothing_can_be_kept_there_is_one_warning(blocked, cache, runs, temporary, monkeypatch):
    if blocked == "by a file":
        cache.touch()
    elif blocked == "by a folder":
        place = library.library_of(CELL, False)
        place.unlink()
        place.mkdir()
    else:
        monkeypatch.setenv("RNNKERN_CACHE_DIR", "/proc/self/cache")
    with pytest.warns(UserWarning, match="cannot keep compiled kernels in .* Set RNNKERN_CACHE_DIR") as given:
        own = [library.library_of(CELL, False) for _ in range(2)]
    assert len(given) == 1
    assert all(path.is_relative_to(temporary) for path in own)


@pytest.mark.proof
def test_what_is_kept_for_one_process_is_deleted_with_it(cache, runs, temporary, monkeypatch):
    monkeypatch.setenv("RNNKERN_CACHE_DIR", "/proc/self/cache")
    (said,) = run_at_once(1)
    assert said.count("cannot keep compiled kernels in /proc/self/cache") == 1
    assert list(temporary.iterdir()) == []


# ---- a full disk, and compilers that fail


def test_where_both_disks_are_full_the_reason_says_so(compile_with, cache, temporary):
    """The size of files is limited to 10,000 bytes, except in the compiler."""
    compile_with("ulimit -S -f unlimited; cp {finished} cell.so")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10000, before[1]))
    try:
        with pytest.warns(UserWarning, match="File too large"), pytest.raises(library.LibraryError) as raised:
            library.library_of(CELL, False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert "the temporary folder cannot be written" in str(raised.value)
    assert raised.value.remedy == library.ROOM
    assert list(cache.iterdir()) == []


KILLED = library.REMEDIES["[Kk]illed"]
FAILURES = {
    "kill -9 $$": ("killed by signal 9", KILLED),
    "echo 'c++: fatal error: Killed signal terminated program cc1plus' >&2; exit 1": ("cc1plus", KILLED),
    "echo 'final link failed: No space left on device' >&2; exit 1": ("No space left", library.ROOM),
    "head -c 12288 {finished} > cell.so": ("wrote only the first 12288 bytes: No space left", library.ROOM),
    "head -c 60 {finished} > cell.so": ("wrote only the first 60 bytes", library.ROOM),
    "echo partial > cell.so; echo 'unknown -std' >&2; exit 1": ("unknown -std", library.INSTALL),
    "": ("the temporary folder cannot be written: .*cell.so", library.ROOM),
}


@pytest.mark.parametrize("script", FAILURES)
def test_a_compiler_that_fails_leaves_nothing_behind(script, compile_with, cache, temporary):
    wanted, remedy = FAILURES[script]
    compile_with(script)
    with pytest.raises(library.LibraryError, match=wanted) as raised:
        library.library_of(CELL, False)
    assert raised.value.remedy == remedy
    assert not cache.exists()
    assert list(temporary.iterdir()) == []


def test_what_cannot_start_has_a_remedy(monkeypatch, temporary):
    monkeypatch.setenv("CXX", "/no/compiler -v")
    for wanted, remedy in (
        (r"/no/compiler does not start: .*No such file", library.INSTALL),
        ("the temporary folder cannot be written", library.ROOM),
    ):
        with pytest.raises(library.LibraryError, match=wanted) as raised:
            library.library_of(CELL, False)
        assert raised.value.remedy == remedy
        monkeypatch.setattr(tempfile, "tempdir", str(temporary / "missing"))
