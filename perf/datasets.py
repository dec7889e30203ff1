"""Datasets of the training tasks, from installed packages or from a folder of the user. Nothing is downloaded."""

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
"""One in this many training images, taken from the end, is held out for validation."""


class Images(NamedTuple):
    """Images as sequences of T pixels."""

    train_x: Tensor  # (T, images, 1) float32, in [0, 1]
    train_y: Tensor  # (images,) int64, 0..9
    test_x: Tensor
    test_y: Tensor

    def validation(self) -> "Images":
        """The same images with the end of the training set as test set, for choosing settings."""
        cut = len(self.train_y) * (VALIDATION - 1) // VALIDATION
        x, y = self.train_x, self.train_y
        return Images(x[:, :cut], y[:cut], x[:, cut:], y[cut:])


def digits(seed: int | None = 0) -> Images:
    """scikit-learn's 1,797 images of handwritten digits, 8 x 8 pixels, in a permutation that is drawn from ``seed``, or
    row by row if it is None. One fifth is the test set."""
    from sklearn.datasets import load_digits  # imported here, because nothing else needs scikit-learn
    from sklearn.model_selection import train_test_split

    pixels, labels = load_digits(return_X_y=True)
    parts = train_test_split(pixels / 16, labels, test_size=0.2, stratify=labels, random_state=0)
    return sequences(parts[0], parts[2], parts[1], parts[3], seed)


def mnist(folder: Path, seed: int | None = 0) -> Images:
    """MNIST (LeCun et al. 1998), 28 x 28 pixels, in a permutation that is drawn from ``seed``, or row by row.

    Args:
        folder: contains the four IDX files under their original names, ``train-images-idx3-ubyte`` and so on, each with
            or without ``.gz``.
        seed: seed of the permutation; None keeps the order of the pixels.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: a file has the wrong content, or the numbers of labels and images differ.
    """
    arrays = []
    for part in ("train", "t10k"):
        images, labels = folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"
        x, y = idx(images, 3), idx(labels, 1)
        if len(x) != len(y):
            raise ValueError(f"{labels}: wanted {len(x)} labels, as many as {images.name} has images, got {len(y)}")
        arrays += [x.reshape(len(x), -1) / np.float32(255), y]
    return sequences(*arrays, seed)


def sequences(
    train_x: np.ndarray, train_y: np.ndarray, test_x: np.ndarray, test_y: np.ndarray, seed: int | None
) -> Images:
    length = train_x.shape[1]
    order = np.arange(length) if seed is None else np.random.default_rng(seed).permutation(length)

    def pixels_first(pixels: np.ndarray) -> Tensor:
        return torch.from_numpy(pixels.T[order].astype(np.float32, order="C")).unsqueeze(-1)

    def classes(labels: np.ndarray) -> Tensor:
        return torch.from_numpy(labels.astype(np.int64))

    return Images(pixels_first(train_x), classes(train_y), pixels_first(test_x), classes(test_y))


def idx(path: Path, rank: int) -> np.ndarray:
    """Reads the unsigned bytes of an IDX file, plain or with ``.gz`` appended to its name, as an array of ``rank``
    dimensions.

    Raises:
        FileNotFoundError: neither file exists.
        ValueError: the file is damaged, or has another type or rank.
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
"""Replaces every character that does not occur in the training text or is neither a newline nor printable ASCII."""


class Text(NamedTuple):
    """Text as indices into ``symbols``."""

    train: Tensor  # (characters,) uint8
    valid: Tensor
    test: Tensor
    symbols: str


PARTS = ("train", "valid", "test")


def ptb(folder: Path) -> Text:
    """The Penn Treebank as characters, in the format of Mikolov et al. (2012).

    Args:
        folder: contains ``ptb.char.train.txt``, ``ptb.char.valid.txt`` and ``ptb.char.test.txt``, or ``train.txt``,
            ``valid.txt`` and ``test.txt``: one sentence per line, characters separated by blanks, ``_`` for a blank.

    Raises:
        FileNotFoundError: a file is missing.
        ValueError: characters are not separated by blanks, or a file is empty.
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
"""Folders with test data or tables instead of ordinary source code."""
INSTALLED = ("site-packages", "dist-packages", "config-", "_sysconfigdata")
"""Prefixes of files and folders that do not belong to the standard library."""


def stdlib() -> Text:
    """The source files of the running interpreter's standard library, concatenated in the order of their names.

    A hash of its content assigns each file to one part: about 90 % to training, 5 % to validation and 5 % to the test
    set. Other versions of Python have other texts.

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
