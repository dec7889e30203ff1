"""Data of the training tasks: what lies on every machine, and what the user has in a folder. Nothing is downloaded."""

import gzip
import math
import sysconfig
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

VALIDATION = 6
"""Of so many training images one, the last, is for choosing settings."""


class Images(NamedTuple):
    """Images read pixel by pixel, T steps of one number."""

    train_x: Tensor  # (T, images, 1) float32, in [0, 1]
    train_y: Tensor  # (images,) int64, 0..9
    test_x: Tensor
    test_y: Tensor

    def validation(self) -> "Images":
        """The end of the training images stands where those of the test were."""
        cut = len(self.train_y) * (VALIDATION - 1) // VALIDATION
        x, y = self.train_x, self.train_y
        return Images(x[:, :cut], y[:cut], x[:, cut:], y[cut:])


def digits(seed: int = 0) -> Images:
    """scikit-learn's 1,797 scans of 8 x 8 pixels in one permutation, which ``seed`` decides; a fifth is the test."""
    from sklearn.datasets import load_digits  # here: nothing else needs scikit-learn
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    parts = train_test_split(pixels / 16, labels, test_size=0.2, stratify=labels, random_state=0)
    return permuted(parts[0], parts[2], parts[1], parts[3], seed)


def mnist(folder: Path, seed: int = 0) -> Images:
    """MNIST (LeCun et al. 1998), 28 x 28 pixels in one permutation, which ``seed`` decides.

    Args:
        folder: holds the four IDX files under their own names, ``train-images-idx3-ubyte`` and so on, each as it is or
            with ``.gz``.
        seed: of the permutation.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file is not what its name says; there are not as many labels as images.
    """
    arrays = []
    for part in ("train", "t10k"):
        images, labels = folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"
        x, y = idx(images, 3), idx(labels, 1)
        if len(x) != len(y):
            raise ValueError(f"{labels}: wanted {len(x)} labels, as many as {images.name} has images, got {len(y)}")
        arrays += [x.reshape(len(x), -1) / np.float32(255), y]
    return permuted(*arrays, seed)


def permuted(train_x: np.ndarray, train_y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray, seed: int) -> Images:
    order = np.random.default_rng(seed).permutation(train_x.shape[1])

    def sequences(pixels: np.ndarray) -> Tensor:
        return torch.from_numpy(pixels.T[order].astype(np.float32, order="C")).unsqueeze(-1)

    def classes(labels: np.ndarray) -> Tensor:
        return torch.from_numpy(labels.astype(np.int64))

    return Images(sequences(train_x), classes(train_y), sequences(test_x), classes(test_y))


def idx(path: Path, rank: int) -> np.ndarray:
    """The unsigned bytes of an IDX file, plain or with ``.gz`` behind its name, as an array of ``rank`` dimensions.

    Raises:
        FileNotFoundError: there is neither.
        ValueError: it is damaged, or of another type or rank.
    """
    zipped = path.with_name(f"{path.name}.gz")
    if path.exists():
        content = path.read_bytes()
    elif zipped.exists():
        path = zipped
        try:
            content = gzip.decompress(path.read_bytes())
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}: wanted a whole gzip file, got: {error}") from error
    else:
        raise FileNotFoundError(f"{path}: wanted this file or {zipped.name}, got neither")
    begun, magic = content[:4], bytes((0, 0, 8, rank))
    if begun != magic:
        raise ValueError(
            f"{path}: wanted the magic number {magic.hex(' ')} of unsigned bytes in {rank} dimensions, "
            f"got {begun.hex(' ') or 'nothing'}"
        )
    start = 4 + 4 * rank
    if len(content) < start:
        raise ValueError(f"{path}: wanted a header of {start} bytes, got {len(content)} bytes in all")
    sizes = np.frombuffer(content, ">u4", rank, 4).tolist()
    if len(content) != (wanted := start + math.prod(sizes)):
        raise ValueError(f"{path}: wanted {wanted} bytes for the sizes {sizes}, got {len(content)}")
    return np.frombuffer(content, np.uint8, offset=start).reshape(sizes)


OTHER = "\ufffd"
"""Stands for every character that is neither a newline nor printable ASCII, or that the training text lacks."""


class Text(NamedTuple):
    """Characters, as indices into ``symbols``."""

    train: Tensor  # (characters,) uint8
    valid: Tensor
    test: Tensor
    symbols: str


PARTS = ("train", "valid", "test")


def ptb(folder: Path) -> Text:
    """The Penn Treebank, character by character, in the form of Mikolov et al. (2012).

    Args:
        folder: holds ``ptb.char.train.txt``, ``ptb.char.valid.txt`` and ``ptb.char.test.txt``, or ``train.txt``,
            ``valid.txt`` and ``test.txt``: a sentence a line, its characters between blanks, ``_`` for a blank.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: characters do not stand apart, or a file is empty.
    """
    return encoded(*("".join(sentences(folder, part)) for part in PARTS))


def sentences(folder: Path, part: str) -> Iterator[str]:
    path, other = folder / f"ptb.char.{part}.txt", folder / f"{part}.txt"
    if not path.exists():
        if not other.exists():
            raise FileNotFoundError(f"{path}: wanted this file or {other.name}, got neither")
        path = other
    if not (lines := path.read_text(encoding="utf-8").splitlines()):
        raise ValueError(f"{path}: wanted text, got an empty file")
    for number, line in enumerate(lines, 1):
        characters = line.split()
        if together := next((c for c in characters if len(c) > 1), None):
            raise ValueError(f"{path}: wanted characters between blanks, got {together!r} in line {number}")
        yield "".join(characters).replace("_", " ") + "\n"


NOT_PROSE = {"test", "tests", "idle_test", "encodings", "pydoc_data"}
"""Folders whose sources are samples or tables."""
INSTALLED = ("site-packages", "dist-packages", "config-", "_sysconfigdata")
"""What a machine or its user has added begins so."""


def stdlib() -> Text:
    """The sources of the running interpreter's standard library, file after file in the order of their names.

    A file's content decides its part, so that no two parts share a file: of 20 files about 18 are for training, one for
    validation and one for the test. Another version of Python is another text.

    Raises:
        FileNotFoundError: the library has no sources here.
    """
    texts: dict[str, list[str]] = {part: [] for part in PARTS}
    found = sources(root := Path(sysconfig.get_path("stdlib")))
    for path in found:
        text = path.read_text(encoding="utf-8", errors="replace")
        part = {0: "valid", 1: "test"}.get(zlib.crc32(text.encode()) % 20, "train")
        texts[part].append(text)
    if not all(texts.values()):
        raise FileNotFoundError(f"{root}: wanted the sources of the standard library, got {len(found)} files")
    return encoded(*("".join(texts[part]) for part in PARTS))


def sources(root: Path) -> list[Path]:
    def belongs(path: Path) -> bool:
        parts = path.relative_to(root).parts
        return not any(part in NOT_PROSE or part.startswith(INSTALLED) for part in parts)

    return sorted(filter(belongs, root.rglob("*.py")), key=lambda path: path.relative_to(root).as_posix())


def encoded(train: str, valid: str, test: str) -> Text:
    symbols = "".join(sorted(c for c in set(train) if c == "\n" or " " <= c <= "~")) + OTHER
    table = np.full(256, len(symbols) - 1, np.uint8)
    for k, symbol in enumerate(symbols[:-1]):
        table[ord(symbol)] = k

    def indices(text: str) -> Tensor:
        codes = np.frombuffer(text.encode("utf-32-le"), "<u4")
        return torch.from_numpy(table[np.minimum(codes, 255)])

    return Text(indices(train), indices(valid), indices(test), symbols)
