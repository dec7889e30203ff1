"""Mutants of relevancy attention."""

from python_tests.mutation.mutant import Mutant, interpreted, named, valued

ATTENDING = "python_tests/gpu/test_relevancy.py"
RANDOM = named("random_calls_in_float64", "python_tests/ops/test_relevancy.py")
TIES = named("equal_scores", "python_tests/ops/test_relevancy_adversarial.py")
SAB = named("random_calls", "python_tests/ops/test_sab.py")
GATHER = valued("gather_attention")
RACES = ("python_tests/gpu/test_races.py", "-k", "our_kernels and relevancy")


def on_a_cluster(words: str) -> tuple[str, ...]:
    return interpreted(f"cluster and {words}", ATTENDING)


RELEVANCY = [
    Mutant("relevancy/cpu/forward.h", "x.scores[j] < x.scores[to]", "x.scores[j] <= x.scores[to]",
           "which of equal least scores goes",
           named("equal_least", "python_tests/ops/test_relevancy_adversarial.py")),
    Mutant("relevancy/cpu/forward.h", "x.scores[slot] > x.scores[to]", "x.scores[slot] >= x.scores[to]",
           "that the older of two equal scores stays", TIES),
    Mutant("relevancy/cpu/forward.h", "i < count && x.live[i] < p.slots", "i < count", "that scores in R are frozen",
           RANDOM),
    Mutant("relevancy/cpu/backward.h", "std::memcpy(grads + slot * width, grads + from * width, bytes);",
           "std::memset(grads + slot * width, 0, bytes);", "what came to an event while it was in R", RANDOM),
    Mutant("relevancy/cpu/backward.h", "x.in_slot[from] = x.overwritten[t];", "x.in_slot[from] = no_event;",
           "what was in R before", RANDOM),
    Mutant("relevancy/cpu/backward.h", "      replay(p, first + i, t, x[i]);\n", "", "what was there before a reset",
           RANDOM),
    Mutant("relevancy/cpu/sab_backward.h", "d_weights[k - 1] = -sum", "d_weights[k - 1] = sum",
           "a sign of the threshold",
           SAB),
    Mutant("relevancy/cpu/sab_backward.h", "/ call.sums[row]", "", "the divisor of the weights", SAB),
    Mutant("relevancy/cpu/gather_backward.h", "grad_alpha[members[c]] - along", "grad_alpha[members[c]]",
           "the softmax's mean in its gradient", GATHER),
    # ---- CUDA kernels, on the interpreter
    Mutant("relevancy/cuda/cluster_tile.cuh", "device::wait(arrived, int(step % 2));\n", "",
           "the waits for what other blocks send", on_a_cluster("first_call")),
    Mutant("relevancy/cuda/cluster_forward.cuh", "e += shared_layout.parts", "e = shared_layout.parts",
           "the sum of parts of scores",
           on_a_cluster("first_call")),
    Mutant("relevancy/cuda/cluster_forward.cuh",
           "enter_event(t, place);\n      device::block_barrier();\n", "enter_event(t, place);\n",
           "the barrier before others may send the next h",
           on_a_cluster("any_schedule")),
    Mutant("relevancy/cuda/per_sequence_slots.cuh", "    device::warp_barrier();", "    device::shuffle(0, 0);",
           "the barrier before what all lanes read is overwritten", RACES),
    Mutant("relevancy/cuda/per_sequence_backward.cuh", "states > 1 && mine) dc =", "states > 1 && i < n) dc =",
           "that other threads do not read what one of them overwrites", RACES),
    Mutant("relevancy/cuda/per_sequence_slots.cuh", "&& !given && k < slots", "&& !given",
           "that scores in R are frozen",
           on_a_cluster("every_cell and everything")),
    Mutant("relevancy/cuda/per_sequence_slots.cuh", "overwritten < 0 ? slot : slots + overwritten", "slot",
           "that what came to an event in R goes back to S", on_a_cluster("every_cell and everything")),
    Mutant("relevancy/cuda/cluster_backward.cuh", "        recall(t - 1);\n", "",
           "what was there before a reset", on_a_cluster("everything_at_once")),
    Mutant("relevancy/cuda/cluster_backward.cuh", "a * (memory.scores[k] - mean)", "a * memory.scores[k]",
           "the softmax's mean in its gradient", on_a_cluster("first_call")),
    Mutant("relevancy/cuda/cluster_backward.cuh", "      device::block_barrier();\n\n      of_gates.send",
           "of_gates.send",
           "the barrier before the gates' gradients are multiplied", on_a_cluster("first_call")),
    Mutant("relevancy/cuda/cluster_tile.cuh", "target = to + device::cluster_rank() * pitch + column",
           "target = to + column", "the row of parts that is each block's own", on_a_cluster("first_call")),
    Mutant("relevancy/cuda/per_sequence_tile.cuh", "T::pieces, T::column(k));", "T::pieces, T::column(0));",
           "which columns are streamed", interpreted("shipped and 128", ATTENDING)),
    Mutant("relevancy/cuda/per_sequence_tile.cuh", ": i % 2 ? word & how.mask", ": i % 2 ? word",
           "which half of a word a weight is", interpreted("in_16_bits", ATTENDING)),
    Mutant("relevancy/cuda/per_sequence_tile.cuh", "transposed ? 1 : n, column_step", "n, column_step",
           "that the backward takes columns", interpreted("shipped and 128", ATTENDING)),
    Mutant("relevancy/cuda/per_sequence_tile.cuh", "T::column(placement.keys_in_registers + k)", "T::column(k)",
           "which columns of U_a lie in shared memory", interpreted("shipped and 128", ATTENDING)),
    Mutant("relevancy/cuda/driver.h", "const Pack pack{hidden, transposed,", "const Pack pack{hidden, false,",
           "that the backward takes columns, packed", interpreted("shipped and 128", ATTENDING)),
    Mutant("relevancy/cuda/stepwise_attention_backward.cuh", "exponential(alpha[place] - most)",
           "exponential(alpha[place])",
           "the largest score in weights that are made again", interpreted("large_scores", ATTENDING)),
]  # fmt: skip
