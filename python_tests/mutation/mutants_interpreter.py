"""Mutants of the interpreter: each turns off one of its checks, or one way in which runs differ."""

from python_tests.mutation.mutant import Mutant

RACES = ("python_tests/gpu/test_races.py", "-k", "wrong_kernels or right_ones")
FAULTS = ("python_tests/gpu/test_interpreter.py", "-k", "not sanitizer")
PRIMITIVES = "interpreter/primitives.cpp"

INTERPRETER = [
    Mutant("interpreter/fibers.cpp", "    if (ordering) {", "    if (true) {", "that shuffles order nothing", RACES),
    Mutant(PRIMITIVES, "    see(fiber, copy.from, copy.to, copy.bytes);\n", "", "that copies may be late", RACES),
    Mutant(PRIMITIVES, "  machine().fiber().seen.acquires(barrier);\n", "", "that a wait orders", RACES),
    Mutant(PRIMITIVES, "  seen.writes(store.to, size_t(bytes));\n", "", "that store_async writes", RACES),
    Mutant(PRIMITIVES, "  std::memcpy(store.value, &x, sizeof x);\n  m.send(store);\n",
           "  std::memcpy(store.value, &x, sizeof x);\n  m.send(store);\n  m.deliver_words();\n",
           "words that are late", FAULTS),
    Mutant(PRIMITIVES, "  m.deliver_words();\n", "", "that words are there after a flag", FAULTS),
    Mutant("interpreter/fibers.cpp", "most_clusters = 4", "most_clusters = 1", "blocks that take turns", FAULTS),
    Mutant(PRIMITIVES, "store.on->fence == uint32_t(Fence::none)", "false", "the check of init_fence", FAULTS),
    Mutant(PRIMITIVES, "store.on->fence == uint32_t(Fence::fenced)", "false", "the check of the barrier after it",
           FAULTS),
    Mutant(PRIMITIVES, "m.shape().cluster == 1", "false", "the check that there are clusters", FAULTS),
    Mutant(PRIMITIVES, "barrier->bytes + bytes >= most_bytes", "false", "the largest number of bytes", FAULTS),
    Mutant("interpreter/fibers.cpp", "store.on->bytes - store.bytes <= -most_bytes", "false",
           "the largest number of unexpected bytes", FAULTS),
    Mutant("interpreter/launch_check.h", "shape.shared_bytes > facts.shared_bytes", "false",
           "the check of shared memory", FAULTS),
    Mutant("interpreter/launch_check.h", "shape.cluster > 16 || ", "", "the check of clusters", FAULTS),
    Mutant("interpreter/launch_check.h", "shape.cooperative && shape.blocks >", "false && shape.blocks >",
           "the check that blocks can run at once", FAULTS),
    Mutant(PRIMITIVES, "most = std::max(most, ++counts[banks]);", "++counts[banks];", "conflicts of banks", FAULTS),
]  # fmt: skip
