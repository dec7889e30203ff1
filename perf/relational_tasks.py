"""Relational tasks, generated: each draws indices (B, T) into a table of shapes, and the answers (B,).

Sources: Kerg et al. 2022 (5.4.1, 5.4.3, appendix C) and Webb et al. 2021. Shares of answers and kinds are exact where B
is divisible by their number.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

Draw = Callable[[int, Tensor, torch.Generator, bool], tuple[Tensor, Tensor]]
"""A function of B, the shapes to draw from (N,), the generator, and whether for the test."""


class Task(NamedTuple):
    objects: int  # T
    answers: int
    held: int  # m, number of shapes held out for the test, of 100, in the hardest published setting
    draw: Draw
    segments: tuple[int, ...] | None = None  # of the normalization, where the published scripts of ESBN have some


def distinct(count: int, number: int, pool: Tensor, generator: torch.Generator) -> Tensor:
    """``number`` distinct shapes of the pool for each sample, (count, number)."""
    return pool[torch.rand(count, len(pool), generator=generator).topk(number, dim=1).indices]


def kinds(count: int, number: int, generator: torch.Generator) -> Tensor:
    """Numbers 0 to ``number`` - 1 in equal shares, in random order."""
    return (torch.arange(count) % number)[torch.randperm(count, generator=generator)]


def arranged(shapes: Tensor, forms: Sequence[str], kind: Tensor, first: str = "a") -> Tensor:
    """Shapes in the order of each sample's form: letter ``first`` is column 0, the next letter column 1."""
    places = torch.tensor([[ord(letter) - ord(first) for letter in form] for form in forms])
    return shapes.gather(1, places[kind])


def among(candidates: Tensor, wanted: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """The candidates in random order, and the place of the wanted one."""
    order = torch.rand(candidates.shape, generator=generator).argsort(1)
    shown = candidates.gather(1, order)
    return shown, (shown == wanted.unsqueeze(1)).int().argmax(1)


def same_different(count: int, pool: Tensor, generator: torch.Generator, test: bool) -> tuple[Tensor, Tensor]:
    """a a : 0, a b : 1."""
    answer = kinds(count, 2, generator)
    return arranged(distinct(count, 2, pool, generator), ("aa", "ab"), answer), answer


def rmts(count: int, pool: Tensor, generator: torch.Generator, test: bool) -> tuple[Tensor, Tensor]:
    """A source pair and two pairs, one equal, one different: which is like the source?"""
    kind = kinds(count, 4, generator)
    forms = ("aabbcd", "aacdbb", "abcdee", "abeecd")
    return arranged(distinct(count, 5, pool, generator), forms, kind), kind % 2


def dist3(count: int, pool: Tensor, generator: torch.Generator, test: bool) -> tuple[Tensor, Tensor]:
    """Distribution of three: see :func:`distribution`."""
    return distribution(3)(count, pool, generator, test)


def distribution(number: int, restricted: bool = False) -> Draw:
    """N shapes, all but the last of a permutation of them, and N + 1 candidates: which is the last? ``restricted``: in
    training, permutations keep the set of the first N - 3."""

    def draw(count, pool, generator, test):
        shapes = distinct(count, number + 1, pool, generator)
        noise = torch.rand(count, number, generator=generator)
        if restricted and not test:
            noise[:, number - 3 :] += 1
        permuted = shapes[:, :number].gather(1, noise.argsort(1))
        candidates, answer = among(shapes, permuted[:, -1], generator)
        return torch.cat([shapes[:, :number], permuted[:, :-1], candidates], 1), answer

    return draw


def identity_rules(count: int, pool: Tensor, generator: torch.Generator, test: bool) -> tuple[Tensor, Tensor]:
    """A row aaa, aba or abb, and the start of another of the same form: which of four shapes completes it?"""
    shapes, kind = distinct(count, 4, pool, generator), kinds(count, 3, generator)
    rows = arranged(shapes, ("aaabbb", "abacdc", "abbcdd"), kind)
    candidates, answer = among(shapes, rows[:, -1], generator)
    return torch.cat([rows[:, :-1], candidates], 1), answer


FOURS = {
    "training": ("aaaa", "abaa", "aaba", "baaa", "abba", "abab", "aabb"),
    "test": ("abca", "baca", "bcaa"),
    "missing": ("aaaa", "aaba", "baaa", "abba", "aabb"),
}


def identity_rules4(training: str, tested: str) -> Draw:
    """Identity rules with rows of four and six candidates."""

    def draw(count, pool, generator, test):
        forms = FOURS[tested if test else training]
        shapes, kind = distinct(count, 6, pool, generator), kinds(count, len(forms), generator)
        rows = [arranged(shapes[:, first : first + 3], forms, kind) for first in (0, 3)]
        candidates, answer = among(shapes, rows[1][:, -1], generator)
        return torch.cat([rows[0], rows[1][:, :-1], candidates], 1), answer

    return draw


THREES = {False: ("aaa", "aba", "baa"), True: ("aab", "abc")}
"""Forms of triplets in training and in the test of RMTS3."""


def rmts3(count: int, pool: Tensor, generator: torch.Generator, test: bool) -> tuple[Tensor, Tensor]:
    """A source triplet and two triplets, one of the source's form: which?"""
    forms = THREES[test]
    width = max(len(set(form)) for form in forms)
    shapes = distinct(count, 8 if test else 6, pool, generator)
    kind = kinds(count, len(forms) * (len(forms) - 1) * 2, generator)
    answer, source = kind % 2, kind // 2 % len(forms)
    other = (source + 1 + kind // (2 * len(forms))) % len(forms)
    triplets, used = [], torch.zeros(count, dtype=torch.long)
    letters = torch.tensor([len(set(form)) for form in forms])
    for form in (source, torch.where(answer == 0, source, other), torch.where(answer == 0, other, source)):
        places = (used.unsqueeze(1) + torch.arange(width)).clamp(max=shapes.shape[1] - 1)
        triplets.append(arranged(shapes.gather(1, places), forms, form))
        used = used + letters[form]
    return torch.cat(triplets, 1), answer


def same_different6(count: int, pool: Tensor, generator: torch.Generator, test: bool) -> tuple[Tensor, Tensor]:
    """Two triplets of the same two shapes: equal (0) or not (1)? In the test at least one is aab."""
    forms = ("aaa", "aba", "baa", "aab")
    shapes, answer = distinct(count, 2, pool, generator), kinds(count, 2, generator)
    first = torch.full((count,), 3) if test else torch.randint(3, (count,), generator=generator)
    other = torch.randint(3, (count,), generator=generator)
    if not test:
        other = (first + 1 + other % 2) % 3
    second = torch.where(answer == 0, first, other)
    swapped = torch.rand(count, generator=generator) < 0.5
    pair = torch.where(swapped, second, first), torch.where(swapped, first, second)
    return torch.cat([arranged(shapes, forms, form) for form in pair], 1), answer


def comparison(transitive: bool) -> Draw:
    """One shape in two of three sizes: where is the larger one? For N shapes, indices are size * N + shape.
    ``transitive``: training compares neighbours, the test the smallest with the largest."""

    def draw(count, pool, generator, test):
        pairs = torch.tensor([[0, 1], [1, 2], [0, 2]])
        pairs = pairs[2:] if transitive and test else pairs[:2] if transitive else pairs
        size = pairs[torch.randint(len(pairs), (count,), generator=generator)]
        answer = kinds(count, 2, generator)
        size = torch.where(answer.unsqueeze(1) == 1, size, size.flip(1))
        return size * len(pool) + distinct(count, 1, pool, generator), answer

    return draw


TASKS = {
    "same/different": Task(2, 2, 98, same_different),
    "RMTS": Task(6, 2, 95, rmts, (2, 2, 2)),
    "dist3": Task(9, 4, 95, dist3),
    "identity rules": Task(9, 4, 95, identity_rules),
    "RMTS3": Task(9, 2, 94, rmts3, (3, 3, 3)),
    "same/different 6": Task(6, 2, 98, same_different6),
    "identity rules 4": Task(13, 6, 94, identity_rules4("training", "test")),
    "identity rules 4, missing": Task(13, 6, 94, identity_rules4("missing", "test")),
    "identity rules 4, flipped": Task(13, 6, 94, identity_rules4("test", "training")),
    "dist10": Task(30, 11, 89, distribution(10)),
    "dist10, restricted": Task(30, 11, 89, distribution(10, restricted=True)),
    "comparison": Task(2, 2, 50, comparison(transitive=False)),
    "transitive": Task(2, 2, 50, comparison(transitive=True)),
}


def split(held: int, seed: int, shapes: int = 100) -> tuple[Tensor, Tensor]:
    """Shapes for training and for the test; the same for both if none are held out."""
    order = torch.randperm(shapes, generator=torch.Generator().manual_seed(2000 + seed))
    return (order, order) if held == 0 else (order[held:], order[:held])
