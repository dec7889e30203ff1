"""Ways to break what makes kernels of users' cells."""

from python_tests.mutation.mutant import Mutant

DERIVED = ("python_tests/cells/test_derivation.py", "python_tests/cells/test_collection.py")
KERNELS = ("python_tests/cells/test_kernels.py",)
GRAPH, DERIVE, HEADER, ROWS = (f"rnnkern/_cells/{name}.py" for name in ("graph", "derive", "header", "rows"))
NORMS = ("python_tests/cells/test_norms.py",)

CELLS = [
    Mutant(GRAPH, 'return g, make("neg", g)', "return g, g", "the sign of what is subtracted", DERIVED),
    Mutant(GRAPH, 'return divided, make("neg", make("mul", divided, node))', "return divided, None",
           "the gradient of a divisor", DERIVED),
    Mutant(GRAPH, 'make("sub", one, make("mul", y, y))', 'make("sub", one, y)', "tanh's derivative", DERIVED),
    Mutant(GRAPH, 'half = make("mul", g, const(0.5))', "half = g", "the gradient of a maximum of equals",
           ("python_tests/cells/test_derivation.py",)),
    Mutant(GRAPH, 'make("gt", node, const(low)), make("lt", node, const(high))',
           'make("gt", node, const(low)), make("gt", node, const(low))', "hardtanh's upper bound", DERIVED),
    Mutant(DERIVE, 'node.op in ("u", "r") or (node.op in TRANSCENDENTAL and not again)', 'node.op in ("u", "r")',
           "transcendental functions are evaluated again", (*KERNELS, "-k", "what_is_saved")),
    Mutant(HEADER, 'return f"({text} > V(0))"', 'return f"({text} < V(0))"', "a condition that is kept",
           ("python_tests/cells/test_derivation.py",)),
    Mutant(ROWS, "min([*map(first_pass, derived.dold), *reading])", "max(map(first_pass, derived.dold))",
           "a gradient that a later pass reads", NORMS),
    Mutant(ROWS, "if node in early or (level < k and", "if node in early or (level <= k and",
           "a value that its own pass computes", NORMS),
    Mutant("recurrence/cpu/cell.h", "store_gates(du, first_of_u, s.du,", "store_gates(du, 0, s.du,",
           "u's gradient through a second product", (*KERNELS, "-k", "oscillators")),
    Mutant("recurrence/cpu/backward.h", "strip.grad[s] = now.h.is_reset(b) ? plan.lost : p.dstate[s] + b * hidden;",
           "strip.grad[s] = p.dstate[s] + b * hidden;",
           "a later state's gradient across a reset", (*KERNELS, "-k", "options and oscillators")),
]  # fmt: skip
