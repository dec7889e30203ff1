"""Pictures of the objects of relational tasks: tables that samplers index, so that each shape is encoded once.

They have three equal channels in [0, 1]. Bitmaps are random patterns, white on black; glyphs are characters of the font
that matplotlib carries, drawn by Pillow, black on white.
"""

import itertools
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

SHAPES, SIDE = 100, 32
"""Number of shapes in a table, and pixels of a side."""
CELLS, POINTS = 6, 24
"""Cells of a side of a bitmap, and the size of glyphs in pixels."""
LEAST = {"bitmaps": 11.0, "glyphs": 6.0}
"""Least L2 distance of two shapes in a table: more than 400 of the glyphs are copies of another, whose labels would be
wrong."""
COLOURS = 100
"""Number of background colours of spurious tasks."""


def shapes(kind: str, seed: int) -> Tensor:
    """A table of distinct shapes, (100, 3, 32, 32)."""
    generator = torch.Generator().manual_seed(seed)
    candidates = {"bitmaps": bitmaps, "glyphs": glyphs}[kind](generator)
    found: list[Tensor] = []
    while len(found) < SHAPES:
        new = next(candidates)
        if not found or (torch.stack(found) - new).flatten(1).norm(dim=1).min() >= LEAST[kind]:
            found.append(new)
    return torch.stack(found).unsqueeze(1).repeat(1, 3, 1, 1)


def bitmaps(generator: torch.Generator) -> Iterator[Tensor]:
    """Random binary patterns, each cell a square of pixels."""
    while True:
        yield drawn(torch.randint(0, 2, (CELLS, CELLS), generator=generator))


def drawn(cells: Tensor, pixels: int = POINTS // CELLS) -> Tensor:
    """White cells of some pixels each, in the middle of a black picture."""
    ink = cells.float().repeat_interleave(pixels, 0).repeat_interleave(pixels, 1)
    before = (SIDE - len(ink)) // 2
    after = SIDE - len(ink) - before
    return torch.nn.functional.pad(ink, (before, after, before, after))


def glyphs(generator: torch.Generator) -> Iterator[Tensor]:
    """Characters in random order; without those that do not fit into a picture."""
    pictures = all_glyphs()
    for k in torch.randperm(len(pictures), generator=generator).tolist():
        yield pictures[k]


@cache
def all_glyphs() -> Tensor:
    """Every character of DejaVu Sans that fits, (N, 32, 32)."""
    try:
        import matplotlib
        import numpy as np
        from matplotlib.ft2font import FT2Font
        from PIL import Image, ImageDraw, ImageFont
    except ImportError as error:
        raise ImportError(f"glyphs need matplotlib and Pillow (`pip install 'rnnkern[demo]'`): {error}") from error
    path = str(Path(matplotlib.get_data_path()) / "fonts/ttf/DejaVuSans.ttf")
    font, found = ImageFont.truetype(path, POINTS, layout_engine=ImageFont.Layout.BASIC), []
    for code in sorted(FT2Font(path).get_charmap()):
        left, top, right, bottom = font.getbbox(chr(code))
        if not (0 < right - left <= SIDE and 0 < bottom - top <= SIDE):
            continue
        picture = Image.new("L", (SIDE, SIDE), 255)
        at = (SIDE - right - left) // 2, (SIDE - bottom - top) // 2
        ImageDraw.Draw(picture).text(at, chr(code), fill=0, font=font)
        found.append(torch.from_numpy(np.asarray(picture, dtype=np.float32) / 255))
    return torch.stack(found)


def colours(seed: int) -> Tensor:
    """Uniform colours, (100, 3)."""
    return torch.rand(COLOURS, 3, generator=torch.Generator().manual_seed(1000 + seed))


def sizes(seed: int) -> Tensor:
    """One hundred bitmaps in three sizes, (3, 100, 3, 32, 32): cells of 2, 3 and 4 pixels."""
    white = shapes("bitmaps", seed)[:, 0]
    first = (SIDE - POINTS) // 2
    step = POINTS // CELLS
    cells = white[:, first : first + POINTS : step, first : first + POINTS : step]
    return torch.stack([torch.stack([drawn(one, pixels) for one in cells]) for pixels in (2, 3, 4)])[:, :, None].repeat(
        1, 1, 3, 1, 1
    )


# ---- objects of relational games: 9 x 9 pixels in a cell of 12 x 12

CELL, SQUARE = 12, 3
LEVELS = (64, 144, 192)
GREYS = ((64, 64, 64), (192, 192, 192))
"""Colours that are left out, so that 25 remain."""


def palette() -> Tensor:
    """The 25 colours of games, (25, 3), in [0, 1]."""
    return torch.tensor([c for c in itertools.product(LEVELS, repeat=3) if c not in GREYS]) / 255


def polyominoes(squares: int) -> list[Tensor]:
    """Every connected set of so many of 3 x 3 squares, in each orientation, moved to the upper left; 3 x 3 masks."""
    found = {}
    for chosen in itertools.combinations(itertools.product(range(3), range(3)), squares):
        rows, columns = zip(*chosen, strict=True)
        moved = frozenset((r - min(rows), c - min(columns)) for r, c in chosen)
        if is_connected(moved):
            found[moved] = torch.tensor([[float((r, c) in moved) for c in range(3)] for r in range(3)])
    return list(found.values())


def is_connected(squares: frozenset[tuple[int, int]]) -> bool:
    reached, new = set(), {min(squares)}
    while new:
        reached |= new
        new = {(r + a, c + b) for r, c in new for a, b in ((0, 1), (1, 0), (0, -1), (-1, 0))} & squares - reached
    return reached == squares


def game_objects(kind: str) -> tuple[Tensor, int]:
    """A table of objects (shapes x colours + 1, 3, 12, 12), the last of which is an empty cell, and the number of
    shapes; object s of colour c is s * 25 + c. The shapes of stripes are their inner colours."""
    of_colour = palette()
    if kind == "stripes":
        inner = torch.zeros(9, 9, dtype=torch.bool)
        inner[3:6] = True
        count = len(of_colour)
        squares = torch.where(inner, of_colour[:, None, :, None, None], of_colour[None, :, :, None, None])
    else:
        masks = torch.stack(polyominoes({"pentominoes": 5, "hexominoes": 6}[kind]))
        ink = masks.repeat_interleave(SQUARE, 1).repeat_interleave(SQUARE, 2)
        count, squares = len(masks), ink[:, None, None] * of_colour[None, :, :, None, None]
    pictures = torch.nn.functional.pad(squares.flatten(0, 1), (1, 2, 1, 2))
    return torch.cat([pictures, torch.zeros(1, 3, CELL, CELL)]), count


def luminance() -> Tensor:
    """Of each colour of the palette."""
    return palette() @ torch.tensor([0.2126, 0.7152, 0.0722])
