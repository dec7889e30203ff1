"""Relational games (Shanahan et al. 2020; Kerg et al. 2022, 5.4.2), generated: nine cells of a picture as a sequence of
objects, which have a shape and a colour.

Each game draws objects (B, 9), indices into the table of :func:`perf.relational_shapes.game_objects`, and answers; -1
is an empty cell. Where the sources are silent: false samples of "same" differ in colour, shape or both by thirds, those
of "xoccurs" contain the object twice as often as not, with two equal others, and rows match among aaa, aab, aba, abb,
abc.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from perf.relational_shapes import luminance
from perf.relational_tasks import Task, arranged, kinds

COLOURS = 25
LINES = torch.tensor([
    [0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6],
])  # fmt: skip
ROWS = ("aaa", "aab", "aba", "abb", "abc")
ANYWHERE = 0.22
"""Share of the false samples of "between" whose objects are on no line."""

Generator = torch.Generator


def objects(count: int, number: int, shapes: int, generator: Generator) -> Tensor:
    """Distinct objects, (count, number)."""
    return torch.rand(count, shapes * COLOURS, generator=generator).topk(number, dim=1).indices


def changed(one: Tensor, kind: Tensor, shapes: int, generator: Generator) -> Tensor:
    """Objects that differ from others in colour (kind 0), shape (1) or both (2)."""
    count = len(one)
    shape, colour = one // COLOURS, one % COLOURS
    other_shape = (shape + torch.randint(1, shapes, (count,), generator=generator)) % shapes
    other_colour = (colour + torch.randint(1, COLOURS, (count,), generator=generator)) % COLOURS
    shape = torch.where(kind == 0, shape, other_shape)
    return shape * COLOURS + torch.where(kind == 1, colour, other_colour)


def placed(cells: Tensor, things: Tensor) -> Tensor:
    """Objects in cells (B, n), the others empty."""
    return torch.full((len(cells), 9), -1).scatter(1, cells, things)


def cells(count: int, number: int, generator: Generator) -> Tensor:
    """Distinct cells, (count, number)."""
    return torch.rand(count, 9, generator=generator).topk(number, dim=1).indices


def same(count: int, shapes: int, generator: Generator) -> tuple[Tensor, Tensor]:
    kind, (one,) = kinds(count, 6, generator), objects(count, 1, shapes, generator).T
    answer = (kind < 3).long()
    other = torch.where(answer == 1, one, changed(one, kind - 3, shapes, generator))
    return placed(cells(count, 2, generator), torch.stack([one, other], 1)), answer


def between(count: int, shapes: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Three objects on a line, the outer ones equal."""
    kind = kinds(count, 6, generator)
    answer = (kind < 3).long()
    one, middle = objects(count, 2, shapes, generator).T
    line = LINES[torch.randint(len(LINES), (count,), generator=generator)]
    anywhere = (answer == 0) & (torch.rand(count, generator=generator) < ANYWHERE)
    scattered = cells(count, 3, generator)
    while (on_line := is_line(scattered)).any():
        scattered[on_line] = cells(int(on_line.sum()), 3, generator)
    differs = (answer == 0) & ~anywhere
    other = torch.where(differs, changed(one, kind - 3, shapes, generator), one)
    where = torch.where(anywhere.unsqueeze(1), scattered, line)
    return placed(where, torch.stack([one, middle, other], 1)), answer


def is_line(where: Tensor) -> Tensor:
    return (where.sort(1).values.unsqueeze(1) == LINES).all(2).any(1)


def rows(top: Tensor, bottom: Tensor, generator: Generator) -> Tensor:
    """One object in the top row, three in the bottom row."""
    count = len(top)
    where = torch.randint(3, (count, 1), generator=generator)
    last = torch.tensor([6, 7, 8]).expand(count, 3)
    return placed(torch.cat([where, last], 1), torch.cat([top.unsqueeze(1), bottom], 1))


def shuffled(things: Tensor, generator: Generator) -> Tensor:
    return things.gather(1, torch.rand(things.shape, generator=generator).argsort(1))


def occurs(count: int, shapes: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The object in the top row is one of those in the bottom row."""
    answer, found = kinds(count, 2, generator), objects(count, 4, shapes, generator)
    bottom = found[:, 1:].clone()
    bottom[:, 0] = torch.where(answer == 1, found[:, 0], bottom[:, 0])
    return rows(found[:, 0], shuffled(bottom, generator), generator), answer


def xoccurs(count: int, shapes: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The object occurs, and the two others are different."""
    kind, found = kinds(count, 6, generator), objects(count, 4, shapes, generator)
    answer = (kind < 3).long()
    forms = ("abc", "abc", "abc", "abb", "abb", "bcd")
    return rows(found[:, 0], shuffled(arranged(found, forms, kind), generator), generator), answer


def row_matching(count: int, shapes: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The first and the last row have the same pattern."""
    answer, found = kinds(count, 2, generator), objects(count, 6, shapes, generator)
    first = torch.randint(len(ROWS), (count,), generator=generator)
    other = (first + torch.randint(1, len(ROWS), (count,), generator=generator)) % len(ROWS)
    second = torch.where(answer == 1, first, other)
    things = [arranged(found[:, k : k + 3], ROWS, form) for k, form in ((0, first), (3, second))]
    return placed(torch.tensor([0, 1, 2, 6, 7, 8]).expand(count, 6), torch.cat(things, 1)), answer


def colour_shape(count: int, shapes: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Two objects: same in both (0), in shape alone (1), in colour alone (2), in nothing (3)."""
    answer, (one,) = kinds(count, 4, generator), objects(count, 1, shapes, generator).T
    other = torch.where(answer == 0, one, changed(one, answer - 1, shapes, generator))
    return placed(cells(count, 2, generator), torch.stack([one, other], 1)), answer


def left_of(count: int, shapes: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Of two objects of different luminance, the darker one is to the left; in the same column, below."""
    brightness, answer = luminance(), kinds(count, 2, generator)
    pair = objects(count, 2, shapes, generator)
    while (alike := brightness[pair % COLOURS].diff(dim=1).abs().squeeze(1) < 1e-4).any():
        pair[alike] = objects(int(alike.sum()), 2, shapes, generator)
    order = brightness[pair % COLOURS].argsort(1)  # the darker one first
    pair, where = pair.gather(1, order), cells(count, 2, generator)
    rank = where % 3 * 3 - where // 3  # from left to right, in a column from below
    first = rank.argsort(1)
    where = where.gather(1, torch.where(answer.unsqueeze(1) == 1, first, first.flip(1)))
    return placed(where, pair), answer


Game = Callable[[int, int, Generator], tuple[Tensor, Tensor]]

GAMES: dict[str, tuple[Game, int]] = {
    "same": (same, 2), "between": (between, 2), "occurs": (occurs, 2), "xoccurs": (xoccurs, 2),
    "row matching": (row_matching, 2), "colour/shape": (colour_shape, 4), "left-of": (left_of, 2),
}  # fmt: skip
"""Games with their numbers of answers."""


def task_of(name: str) -> Task:
    """A game in the form of the other tasks: the pool is the list of all objects of a table."""
    game, answers = GAMES[name]

    def draw(count, pool, generator, test):
        found, answer = game(count, (len(pool) - 1) // COLOURS, generator)
        return torch.where(found < 0, len(pool) - 1, found), answer

    return Task(9, answers, 0, draw)
