"""Positions of matrix elements in the registers of a warp, as in the figures of the PTX manual.

One line per row of the matrix, one entry `lane.element` per column. 16-bit elements share a register in pairs, the even
one in the low half; a 32-bit element fills a register. The interpreter and the hardware are compared with these tables.
They are literal, so that an error in a formula cannot occur on both sides. A figure of the manual consists of two or
four blocks that are alike but for the number of the element.
"""

Layout = dict[tuple[int, int], tuple[int, int]]


def read(figure: str) -> Layout:
    """Maps (lane, element) to (row, column)."""
    rows = [line.split() for line in figure.strip().splitlines()]
    return {
        tuple(map(int, entry.split("."))): (row, column)
        for row, entries in enumerate(rows)
        for column, entry in enumerate(entries)
    }


def transposed(block: Layout) -> Layout:
    return {key: (column, row) for key, (row, column) in block.items()}


def blocks(block: Layout, size: tuple[int, int], firsts: list[list[int]]) -> Layout:
    """Blocks of this size beside and below each other; the first element of each is given."""
    return {
        (lane, first + element): (i * size[0] + row, j * size[1] + column)
        for i, beside in enumerate(firsts)
        for j, first in enumerate(beside)
        for (lane, element), (row, column) in block.items()
    }


# "ldmatrix fragment layout for one 8x8 matrix with 16-bit elements": the two halves of a register.
LDMATRIX = read("""
 0.0  0.1  1.0  1.1  2.0  2.1  3.0  3.1
 4.0  4.1  5.0  5.1  6.0  6.1  7.0  7.1
 8.0  8.1  9.0  9.1 10.0 10.1 11.0 11.1
12.0 12.1 13.0 13.1 14.0 14.1 15.0 15.1
16.0 16.1 17.0 17.1 18.0 18.1 19.0 19.1
20.0 20.1 21.0 21.1 22.0 22.1 23.0 23.1
24.0 24.1 25.0 25.1 26.0 26.1 27.0 27.1
28.0 28.1 29.0 29.1 30.0 30.1 31.0 31.1
""")

# Figure "MMA .m16n8k16 fragment layout for matrix A with .f16 / .bf16 type": a0 ... a7.
A_16 = blocks(LDMATRIX, (8, 8), [[0, 4], [2, 6]])

# The corresponding figure for B: b0 ... b3.
B_16 = blocks(transposed(LDMATRIX), (8, 8), [[0], [2]])

# The corresponding figure for the accumulators C and D, also for .m16n8k8: c0 ... c3.
C = blocks(LDMATRIX, (8, 8), [[0], [2]])

WORDS = read("""
 0.0  1.0  2.0  3.0
 4.0  5.0  6.0  7.0
 8.0  9.0 10.0 11.0
12.0 13.0 14.0 15.0
16.0 17.0 18.0 19.0
20.0 21.0 22.0 23.0
24.0 25.0 26.0 27.0
28.0 29.0 30.0 31.0
""")

# "MMA .m16n8k8 fragment layout for matrix A with .tf32 type": a0 ... a3.
A_TF32 = blocks(WORDS, (8, 4), [[0, 2], [1, 3]])

# The corresponding figure for B: b0, b1.
B_TF32 = blocks(transposed(WORDS), (4, 8), [[0], [1]])
