"""Data of the training tasks, from small files made here and from what every machine has."""

import gzip
import re
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch

from perf import datasets

IMAGES = np.arange(5 * 2 * 3, dtype=np.uint8).reshape(5, 2, 3) * 8


def idx(array: np.ndarray, kind: int = 8) -> bytes:
    return bytes((0, 0, kind, array.ndim)) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


# ---- IDX and MNIST


@pytest.mark.parametrize("array", [IMAGES, np.arange(7, dtype=np.uint8)], ids=["images", "labels"])
def test_idx_plain_and_zipped(array, tmp_path):
    (tmp_path / "plain").write_bytes(idx(array))
    (tmp_path / "zipped.gz").write_bytes(gzip.compress(idx(array)))
    for name in ("plain", "zipped"):
        found = datasets.idx(tmp_path / name, array.ndim)
        assert found.dtype == np.uint8
        assert np.array_equal(found, array)


WHOLE = idx(IMAGES)
DAMAGED = {
    "other type": (idx(IMAGES, kind=13), "wanted the magic number 00 00 08 03 .* got 00 00 0d 03"),
    "other rank": (idx(IMAGES[0]), "wanted the magic number 00 00 08 03 .* in 3 dimensions, got 00 00 08 02"),
    "empty": (b"", "wanted the magic number .* got nothing"),
    "header cut": (WHOLE[:10], "wanted a header of 16 bytes, got 10 bytes in all"),
    "cut": (WHOLE[:-1], r"wanted 46 bytes for the sizes \[5, 2, 3\], got 45"),
    "too long": (WHOLE + b"x", r"wanted 46 bytes for the sizes \[5, 2, 3\], got 47"),
}


@pytest.mark.parametrize(("content", "said"), DAMAGED.values(), ids=DAMAGED)
@pytest.mark.parametrize("ending", ["", ".gz"], ids=["plain", "zipped"])
def test_a_damaged_idx_is_refused(content, said, ending, tmp_path):
    path = tmp_path / f"images{ending}"
    path.write_bytes(gzip.compress(content) if ending else content)
    with pytest.raises(ValueError, match=re.escape(f"{path}: ") + said):
        datasets.idx(tmp_path / "images", 3)


@pytest.mark.parametrize("content", [WHOLE, gzip.compress(WHOLE)[:-12]], ids=["not zipped", "cut"])
def test_a_damaged_gzip_is_refused(content, tmp_path):
    (tmp_path / "images.gz").write_bytes(content)
    with pytest.raises(ValueError, match=r"images\.gz: wanted a whole gzip file, got: "):
        datasets.idx(tmp_path / "images", 3)


def test_a_missing_idx_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"images: wanted this file or images\.gz, got neither"):
        datasets.idx(tmp_path / "images", 3)


def write_mnist(folder: Path, labels: int = 5) -> Path:
    for part, shift in (("train", 0), ("t10k", 1)):
        (folder / f"{part}-images-idx3-ubyte").write_bytes(idx(IMAGES + np.uint8(shift)))
        content = gzip.compress(idx(np.arange(labels, dtype=np.uint8)))
        (folder / f"{part}-labels-idx1-ubyte.gz").write_bytes(content)
    return folder


def test_mnist(tmp_path):
    data = datasets.mnist(write_mnist(tmp_path))
    assert data.train_x.shape == data.test_x.shape == (6, 5, 1)
    assert data.train_x.dtype == torch.float32
    assert data.train_y.tolist() == [0, 1, 2, 3, 4]
    pixels = torch.from_numpy(IMAGES.reshape(5, 6) / np.float32(255))
    assert torch.equal(data.train_x.squeeze(-1).sort(0).values, pixels.T)
    order = data.train_x[:, 0, 0].argsort()
    assert torch.equal(data.train_x[order, :, 0].T, pixels)  # one permutation for all
    assert torch.equal(data.test_x[order].argsort(0), torch.arange(6).expand(5, 6).T.unsqueeze(-1))  # test images too


def test_as_many_labels_as_images(tmp_path):
    with pytest.raises(ValueError, match=r"train-labels-idx1-ubyte: wanted 5 labels, .* got 4"):
        datasets.mnist(write_mnist(tmp_path, labels=4))


# ---- digits


@pytest.fixture(scope="module")
def digits() -> datasets.Images:
    pytest.importorskip("sklearn")
    return datasets.digits()


def test_digits(digits):
    assert digits.train_x.shape == (64, 1437, 1)
    assert digits.test_x.shape == (64, 360, 1)
    assert digits.train_x.dtype == torch.float32
    assert (digits.train_x.min(), digits.train_x.max()) == (0, 1)
    shares = torch.bincount(digits.test_y) / 360 - torch.bincount(digits.train_y) / 1437
    assert shares.abs().max() < 0.01


def test_the_seed_decides_the_permutation_alone(digits):
    again, other = datasets.digits(0), datasets.digits(1)
    assert all(torch.equal(a, b) for a, b in zip(digits, again, strict=True))
    assert not torch.equal(digits.train_x, other.train_x)
    assert torch.equal(digits.train_x.sort(0).values, other.train_x.sort(0).values)
    assert digits.train_x[:, 0, 0].reshape(8, 8)[:, 0].abs().sum() > 0  # the scans' own left edge is almost empty


def test_validation_takes_the_end_of_training(digits):
    chosen = digits.validation()
    assert torch.equal(torch.cat([chosen.train_x, chosen.test_x], 1), digits.train_x)
    assert torch.equal(torch.cat([chosen.train_y, chosen.test_y]), digits.train_y)
    assert len(chosen.test_y) == 240


# ---- text


def characters(text: datasets.Text, part: str) -> str:
    return "".join(text.symbols[k] for k in getattr(text, part).tolist())


def test_encoding():
    text = datasets.encoded("ab\nba", "a\tb", "\u20acac\x00")
    assert text.symbols == "\nab" + datasets.OTHER
    assert text.train.dtype == torch.uint8
    assert characters(text, "train") == "ab\nba"
    assert characters(text, "valid") == f"a{datasets.OTHER}b"
    assert characters(text, "test") == f"{datasets.OTHER}a{datasets.OTHER}{datasets.OTHER}"


def write_ptb(folder: Path, name: str = "ptb.char.{}.txt") -> Path:
    for part in datasets.PARTS:
        (folder / name.format(part)).write_text(f" a _ < u n k > _ {part[0]} \n b . \n")
    return folder


@pytest.mark.parametrize("name", ["ptb.char.{}.txt", "{}.txt"])
def test_ptb(name, tmp_path):
    text = datasets.ptb(write_ptb(tmp_path, name))
    assert characters(text, "train") == "a <unk> t\nb.\n"
    assert characters(text, "valid") == f"a <unk> {datasets.OTHER}\nb.\n"


def test_what_is_no_ptb_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"ptb\.char\.train\.txt: wanted this file or train\.txt, got neither"):
        datasets.ptb(tmp_path)
    write_ptb(tmp_path)
    path = tmp_path / "ptb.char.valid.txt"
    path.write_text("a _ b\nno it was\n")
    with pytest.raises(ValueError, match=r"valid\.txt: wanted characters between blanks, got 'no' in line 2"):
        datasets.ptb(tmp_path)
    path.write_text("")
    with pytest.raises(ValueError, match=r"valid\.txt: wanted text, got an empty file"):
        datasets.ptb(tmp_path)


def test_stdlib_is_the_same_each_time_and_large():
    text, again = datasets.stdlib(), datasets.stdlib()
    assert all(torch.equal(a, b) for a, b in zip(text[:3], again[:3], strict=True))
    assert len(text.train) > 4_000_000
    assert min(len(text.valid), len(text.test)) > 100_000
    assert {*"\n aZ(_{", datasets.OTHER} <= set(text.symbols)


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    """A standard library of 60 files, five of them twice."""
    for k in range(60):
        path = tmp_path / f"p{k % 3}" / f"m{k:02}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"<{k % 55}>")
    for extra in ("test/a.py", "p0/tests/b.py", "site-packages/c.py", "config-3/d.py", "_sysconfigdata_x.py", "e.txt"):
        (tmp_path / extra).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / extra).write_text("<never>")
    monkeypatch.setattr(sysconfig, "get_path", {"stdlib": str(tmp_path)}.get)
    return tmp_path


def test_stdlib_has_each_file_once_in_order(library):
    text = datasets.stdlib()
    found = {part: re.findall(r"<(\w+)>", characters(text, part)) for part in datasets.PARTS}
    in_order = [path.read_text()[1:-1] for path in sorted(library.glob("p*/*.py"))]
    for part, files in found.items():
        assert files == [name for name in in_order if name in set(files)], part
    assert sum(map(len, found.values())) == 60
    assert set(found["train"]).isdisjoint(found["valid"])
    assert set(found["train"]).isdisjoint(found["test"])
    assert set(found["valid"]).isdisjoint(found["test"])
    assert len(found["train"]) > 40


def test_a_library_without_sources_is_named(library):
    for path in library.rglob("*.py"):
        path.unlink()
    with pytest.raises(FileNotFoundError, match=re.escape(f"{library}: wanted the sources of the standard library")):
        datasets.stdlib()
