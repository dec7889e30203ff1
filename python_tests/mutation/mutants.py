"""The written table: what is broken, one place at a time, and the tests that are to notice. Neither runs anything."""

from typing import NamedTuple

RECURRENCE = "python_tests/ops/test_recurrence.py"
ON_A_GPU = "python_tests/gpu/test_recurrence.py"
ON_CLUSTERS = "python_tests/gpu/test_recurrence_cluster.py"
IN_TF32 = "python_tests/gpu/test_recurrence_tf32.py"
ON_THE_GRID = "python_tests/gpu/test_recurrence_grid.py"
ATTENDING = "python_tests/gpu/test_relevancy_cluster.py"
ATTENDING_BLOCKS = "python_tests/gpu/test_relevancy.py"


def values(cell: str) -> tuple[str, ...]:
    return RECURRENCE, "-k", f"float64_agrees and {cell}-"


def named(words: str, file: str = RECURRENCE) -> tuple[str, ...]:
    return file, "-k", words


def interpreted(words: str, file: str = ON_A_GPU) -> tuple[str, ...]:
    return file, "-k", f"interpret and ({words})"


DRAWN = ("python_tests/ops/test_properties.py",)
DRAWS = named("float64_agrees and (zoneout or dropout)")
NORMS = named("float64_agrees and layer_norm")
HALVES = named("16_bits or every_value")
TEAMS = named("same_bits")
BOTH = named("the_bits", "python_tests/ops/test_pair.py")
BOUNDED = named("above_what_its_scheme_serves and 33", "python_tests/ops/test_skew_bound.py")
EIGENVALUES = named("keeps_its_bounds and 33", "python_tests/ops/test_skew_exp.py")
RELEVANCY = named("500_random", "python_tests/ops/test_relevancy.py")
TIES = named("equal_scores", "python_tests/ops/test_relevancy_adversarial.py")
SAB = named("random_calls", "python_tests/ops/test_sab.py")
GATHER = named("values_and_gradients", "python_tests/ops/test_gather_attention.py")
SCAN = named("values_and_gradients", "python_tests/ops/test_linear_scan.py")
GIVENS = "python_tests/ops/test_givens.py"
REFLECTIONS = "python_tests/ops/test_householder.py"
RACES = ("python_tests/threads",)
RULE = ("python_tests/test_testing.py",)
CLOSENESS = "rnnkern/testing/closeness.py"


class Mutant(NamedTuple):
    file: str  # below csrc, or of rnnkern
    old: str  # stands there once
    new: str
    breaks: str
    tests: tuple[str, ...]
    explained: str = ""  # why no test can notice

    @property
    def place(self) -> str:
        return self.file if self.file.startswith("rnnkern/") else f"csrc/{self.file}"

    @property
    def for_a_gpu(self) -> bool:
        """Its tests build what it breaks."""
        families = ("block_", "cluster_", "grid_", "cuda_", "step")
        attending = ("relevancy/sample_", "relevancy/attend_", "relevancy/cluster_")
        return self.file.startswith((*(f"recurrence/{family}" for family in families), *attending))


ONE_LEVEL = [
    ("csrc/common/simd_level.cpp", '__builtin_cpu_supports("avx2") &&', "false &&"),
    *(
        ("csrc/recurrence/cpu.cpp", f"if (simd_level() == SimdLevel::{level})", "if (false)")
        for level in ("avx2", "avx512", "avx512_bf16")
    ),
]
"""Edits of every copy: the lowest SIMD level alone, for the sake of the compiler's time."""

LEFT_OUT = {level: f"csrc/recurrence/cpu_{level}.cpp" for level in ("avx2", "avx512", "avx512_bf16")}
STUB = '#include "recurrence/problem.h"\nrnnkern::Level rnnkern::level_{}() {{ return level_plain(); }}\n'

MUTANTS = [
    # ---- cells
    Mutant("cells/lstm.h", "grad[1] + grad[0] * save[3]", "grad[1] - grad[0] * save[3]", "a sign in dc",
           values("lstm")),
    Mutant("cells/lstm.h", "grad[1] = dc * f", "grad[1] = dc", "the forget gate in the gradient of c", values("lstm")),
    Mutant("cells/lstm.h", "save[1] * old[1]", "save[0] * old[1]", "i in the place of f", values("lstm")),
    Mutant("cells/lstm_projected.h", "save[3] * tanh(next_c(save, old))", "save[3] * next_c(save, old)",
           "the tanh of what is projected", values("lstm_projected")),
    Mutant("cells/gru.h", "dr[2] = du[2] * r", "dr[2] = du[2]", "the reset gate in dr", values("gru")),
    Mutant("cells/gru.h", "save[3] = r[2]", "save[3] = u[2]", "what is saved of the product", values("gru")),
    Mutant("cells/goru.h", "dr[2] = du[2] * r", "dr[2] = du[2]", "the reset gate in dr", values("goru")),
    Mutant("cells/complex_modrelu.h", "du[1] = dr[1] = grad[0] * (V(1) - scale)", "du[1] = dr[1] = grad[0] * scale",
           "what a part has of the other's gradient", values("complex_modrelu")),
    Mutant("cells/gru_reset_before.h", "grad[0] + doperand * r", "grad[0] + doperand", "the reset gate in dh",
           values("gru_reset_before")),
    Mutant("cells/modrelu.h", "select(h < V(0), V(0) - dz, dz)", "dz", "the sign of the bias's gradient",
           values("modrelu")),
    Mutant("cells/modrelu.h", "select(length <= V(0)", "select(length < V(0)", "the bound itself", values("modrelu"),
           "where |z| + b is 0, what the other branch gives is 0 too"),
    Mutant("cells/hardtanh.h", "h >= V(1)", "h > V(1)", "the gradient at the upper bound", values("hardtanh")),
    Mutant("cells/relu.h", "h <= V(0)", "h < V(0)", "the gradient at the bound", values("relu")),
    Mutant("cells/euler.h", "dparams[0] + grad[0]", "grad[0]", "the sum over time of a parameter's gradient",
           values("euler")),
    Mutant("cells/tanh.h", "V(1) - h * h", "V(1) + h * h", "a sign in the derivative", values("tanh")),
    # ---- orthogonal weights
    Mutant("orthogonal/cpu_sweep.h", "output.rest.add(E, T(2));", "output.rest.add(E, T(1));", "2 E in a squaring",
           EIGENVALUES),
    Mutant("orthogonal/cpu_sweep.h", "Z.add(room.bars[1], T(1), true);", "Z.add(room.bars[1], T(1));",
           "the transpose in the gradient of S^2", EIGENVALUES),
    Mutant("orthogonal/cpu_sweep.h", "output.rest.add(bars[place], T(1));", "", "what a gradient has already",
           EIGENVALUES),
    Mutant("orthogonal/cpu_plan.h", "-(place + 1) * squarings", "-squarings", "the square of the scale", EIGENVALUES),
    Mutant("orthogonal/cpu_bound.h", "k < doublings; ++k", "k <= doublings; ++k", "the degree of the norm's bound",
           BOUNDED),
    Mutant("orthogonal/cpu_bound.h", "std::sqrt(sum / 2)", "std::sqrt(sum / 8)", "what a pair has of it", BOUNDED),
    Mutant("orthogonal/cpu_bound.h", "sum = sum + sum;", "", "what is above the diagonal too", BOUNDED),
    Mutant("orthogonal/cpu_bound.h", "return Plan<T>(most * (1 + rounding));",
           "return Plan<T>(1.05 * least);", "an estimate for a bound", BOUNDED),
    Mutant("orthogonal/cpu_bound.h", "const double c = inside", "const double c = 0.5 * inside",
           "the interval of the bound", named("bound_is_close and 128", "python_tests/ops/test_skew_bound.py")),
    Mutant("orthogonal/cpu_plan.h", "found.add(X, T((symmetric - skew) / 2), true);",
           "found.add(X, T((symmetric - skew) / 2));", "a transpose in a product made over", EIGENVALUES),
    Mutant("orthogonal/cpu_product.h", ">= (i + 1) * tile_rows", ">= i * tile_rows", "tiles on the diagonal",
           EIGENVALUES),
    Mutant("orthogonal/givens_kernels.h", "back = Vec<T>(T(0)) - s;", "back = s;", "the inverse of a rotation",
           named("test_value_and_gradients", GIVENS)),
    Mutant("orthogonal/givens_kernels.h", "l = sizes.layers; l-- > 0;", "l = sizes.layers; l-- > 1;", "the first layer",
           named("test_value_and_gradients", GIVENS)),
    Mutant("orthogonal/givens_kernels.h", "part < parts; ++part", "part < parts - 1; ++part", "the last vectors",
           named("test_value_and_gradients", GIVENS)),
    Mutant("orthogonal/givens_problem.h", "/ 2, layer % 2, 1}", "/ 2, 0, 1}", "the pairs of every other layer",
           named("test_who_is_paired", GIVENS)),
    Mutant("rnnkern/ops/householder_autograd.py", "+ Z.mH - grad", "- grad", "the gradient through W = S^-1 U^H",
           named("test_gradients or across", REFLECTIONS)),
    Mutant("rnnkern/ops/householder_autograd.py", "U_bar - U * along", "U_bar", "what points along a vector",
           named("test_gradients or across", REFLECTIONS)),
    Mutant("orthogonal/cpu_schur.h", "c * along + s * across", "c * along - s * across", "a sign in dgamma",
           named("test_schur_weight", "python_tests/ops/test_orthogonal.py")),
    # ---- relevancy attention
    Mutant("relevancy/cpu_forward.h", "x.scores[j] < x.scores[to]", "x.scores[j] <= x.scores[to]",
           "which of equal least scores goes",
           named("equal_least", "python_tests/ops/test_relevancy_adversarial.py")),
    Mutant("relevancy/cpu_forward.h", "x.scores[slot] > x.scores[to]", "x.scores[slot] >= x.scores[to]",
           "that the older of two equal scores stays", TIES),
    Mutant("relevancy/cpu_forward.h", "i < count && x.live[i] < p.slots", "i < count", "that scores in R are frozen",
           RELEVANCY),
    Mutant("relevancy/cpu_backward.h", "std::memcpy(grads + slot * width, grads + from * width, bytes);",
           "std::memset(grads + slot * width, 0, bytes);", "what came to an event while it was in R", RELEVANCY),
    Mutant("relevancy/cpu_backward.h", "x.in_slot[from] = x.overwritten[t];", "x.in_slot[from] = no_event;",
           "what was in R before", RELEVANCY),
    Mutant("relevancy/cpu_backward.h", "      replay(p, first + i, t, x[i]);\n", "", "what was there before a reset",
           RELEVANCY),
    Mutant("relevancy/sab_backward.h", "d_weights[k - 1] = -sum", "d_weights[k - 1] = sum", "a sign of the threshold",
           SAB),
    Mutant("relevancy/sab_backward.h", "/ call.sums[row]", "", "the divisor of the weights", SAB),
    Mutant("relevancy/gather_backward.h", "grad_alpha[members[c]] - along", "grad_alpha[members[c]]",
           "the softmax's mean in its gradient", GATHER),
    # ---- linear scans
    Mutant("scan/cpu_strips.h", "bool(lane & 1) == conjugate", "bool(lane & 1) != conjugate",
           "signs of complex products", SCAN),
    Mutant("scan/cpu_strips.h", "first = larger(first, sizes.steps - length);", "last = smaller(last, length);",
           "where a packed sequence begins in reverse", SCAN),
    Mutant("scan/cpu_forward.h", "for (V& x : s) x = V(0);", "s[0] = V(0);",
           "resets of all but the first vector", SCAN),
    Mutant("scan/cpu_backward.h", "s[i] = zeroed ? V(0) : a[i].times(g);", "s[i] = a[i].times(g);",
           "that a reset passes no gradient on", SCAN),
    Mutant("scan/cpu_backward.h", "k % few_steps == 0 || k == span.first", "k == span.first",
           "that sums are of eight steps, whatever a thread's share",
           named("threads_do", "python_tests/ops/test_linear_scan.py")),
    # ---- vectors
    Mutant("common/simd_math.h", "terms = 6", "terms = 4", "two terms of the series",
           ("python_tests/ops/test_simd_math.py",)),
    Mutant("common/simd_math.h", "ln2_low = 0x1.7f7d1cp-20f", "ln2_low = 0", "the low part of ln 2",
           ("python_tests/ops/test_simd_math.py",)),
    Mutant("common/simd_math.h", "a < V(-60)", "a < V(-6)", "where tanh is 1", ("python_tests/ops/test_simd_math.py",)),
    Mutant("common/simd.h", "k < n; ++k) p[k] = v[k]", "k < n - 1; ++k) p[k] = v[k]", "the last of some lanes",
           values("tanh")),
    Mutant("common/simd.h", "if (i & size) continue;", "if (i & 1) continue;", "half of a transposition",
           DRAWN),
    Mutant("recurrence/cpu_storage.h", "bits + 0x7fff + ((bits >> 16) & 1)", "bits + 0x8000", "ties of bfloat16",
           HALVES),
    Mutant("recurrence/cpu_storage.h", "magnitude < 0x38800000", "magnitude < 0x38000000",
           "the least normal float16", HALVES),
    # ---- zoneout and dropout
    Mutant("recurrence/noise.h", "x[3] ^ k1", "x[3]", "half of the key", DRAWS),
    Mutant("recurrence/noise.h", "round < 10", "round < 9", "a round of Philox", DRAWS),
    Mutant("recurrence/noise.h", "return (units + 3) / 4", "return units / 4 + 1", "whose draw is whose", DRAWS),
    Mutant("recurrence/cpu_noise.h", "uint32_t(n + l), uint32_t(b)", "uint32_t(n + l), uint32_t(0)",
           "the sequence in a draw", DRAWS),
    Mutant("recurrence/cpu_noise.h", "== V(0), next, old)", "== V(0), old, next)", "which units stay", DRAWS),
    Mutant("recurrence/cpu_noise.h", "V(T(1) - rate) * next", "next", "zoneout's mean", DRAWS),
    Mutant("recurrence/cpu_noise.h", "T(1 / (1 - noise.dropout))", "T(1)", "the scale of what is left", DRAWS),
    Mutant("recurrence/cpu_backward.h", "grad[0] = dh - kept[0]", "grad[0] = dh",
           "what zoneout holds back of dh", DRAWS),
    Mutant("recurrence/cpu_backward.h", "grad[1] = grad[1] - kept[1];", "", "what zoneout holds back of dc", DRAWS),
    Mutant("recurrence/cpu_backward.h", "p.candidates ? V::load(p.candidates + at, lanes) :", "",
           "h before zoneout took the mean", DRAWS),
    Mutant("recurrence/cpu_backward.h", "first_dR.add(dr, plan.dropped)", "first_dR.add(dr, h_before(b))",
           "what R multiplied, in its gradient", DRAWS),
    Mutant("recurrence/cpu_backward.h", "return plan.dropout.apply(scale * V::load(results), b, unit, lanes)",
           "return scale * V::load(results)", "dropout on the way back", DRAWS),
    Mutant("recurrence/cpu_backward.h", "store(plan.dropout.apply(operand, b, unit, lanes),", "store(operand,",
           "what the second product's R multiplied", DRAWS),
    # ---- norms
    Mutant("recurrence/cpu_normalised.h", "std::sqrt(variance + eps)", "std::sqrt(variance)", "a row of equal values",
           ("python_tests/ops/test_layer_norm.py",)),
    Mutant("recurrence/cpu_normalised.h", "lanes) - level -", "lanes) -", "the mean of a gradient through a norm",
           NORMS),
    Mutant("recurrence/cpu_normalised.h", "- (*this)(i, lanes) * along", "", "a gradient along the row", NORMS),
    Mutant("recurrence/cpu_normalised.h", "add(dr[g] * norm_(i, lanes), dgain_ + i, lanes);", "", "the gain's gradient",
           NORMS),
    Mutant("recurrence/cpu_normalised.h", "grad[1] = grad[1] + V::load(dc_ + unit, lanes);", "",
           "what comes to c by its norm", NORMS),
    Mutant("recurrence/cpu_normalised.h", "if (Cell::normalised) R.bias = nullptr;", "", "the bias before the norm",
           NORMS),
    Mutant("recurrence/cpu_backward.h", "cells = plan.norms + (Cell::gates + 1) * hidden;", "",
           "the c that its norm saw, under zoneout", NORMS),
    # ---- the loop over time
    Mutant("common/room.h", "used += (elements + 15) / 16 * 16", "used += elements / 16 * 16",
           "the size of a part of the workspace", values("lstm")),
    Mutant("common/room.h", "all + each * me.rank", "all", "each member's own workspace", TEAMS),
    Mutant("recurrence/cpu_sequence.h", "if (is_reset(b)) return zeros;", "", "the reset of h", values("tanh")),
    Mutant("recurrence/cpu_sequence.h", "(b < rows_before ? before : initial)", "before",
           "the initial state of sequences that begin later", values("tanh")),
    Mutant("recurrence/cpu_sequence.h", "steps.batch * (me.rank + 1) / me.size : boundary(steps, me.rank + 1, me.size)",
           "steps.batch : boundary(steps, me.rank + 1, me.size)", "who copies which states",
           TEAMS, "members copy the same values to the same places, and to no others"),
    Mutant("recurrence/cpu_sequence.h", "if (split_hidden) me.meet();", "", "the barrier between steps", RACES),
    Mutant("recurrence/cpu_sequence.h", "    step[i] = 0;\n", "", "each step's part of the bias's gradient",
           values("tanh")),
    Mutant("recurrence/cpu_product.h", "transposed ? first_gate * stride +", "transposed ?",
           "where the second product's gates begin, backwards", values("gru_reset_before")),
    Mutant("recurrence/cpu_product.h", "smaller(last * width, outputs) - first * width",
           "smaller(last * width, outputs - 1) - first * width", "a panel's last unit", values("tanh")),
    Mutant("recurrence/cpu_product.h", "size = width / 2; size > 0", "size = width / 2; size > 1",
           "half of a sum over lanes", DRAWN),
    Mutant("recurrence/cpu_step.h", "h_before.is_reset(b) ? V(0) : old_c(", "old_c(", "the reset of c", values("lstm")),
    Mutant("recurrence/cpu_forward.h", "plan.carried + ((k + 1) & 1)", "plan.carried + (k & 1)",
           "the h that 16 bits carry", HALVES),
    Mutant("recurrence/cpu_forward.h", "p.steps.rows(t) <= b", "p.steps.rows(t) < b", "a sequence's own last step",
           values("tanh")),
    Mutant("recurrence/cpu_forward.h", "|| b >= p.steps.rows(0)", "", "sequences without steps",
           named("without_steps")),
    Mutant("recurrence/cpu_backward.h", "(h_before.is_reset(b) ? V(0) : grad[s] + kept[s])", "(grad[s] + kept[s])",
           "the gradient across a reset", values("lstm")),
    Mutant("recurrence/cpu_backward.h", "doperand = through_R(results + unit - q.unit, b, unit, lanes)",
           "doperand = V::load(results + unit - q.unit)", "grad_scale in the second product",
           values("gru_reset_before")),
    Mutant("recurrence/cpu_backward.h", "? later + load(", "? later - load(", "the sign of the gradient of h",
           values("tanh")),
    Mutant("recurrence/cpu_backward.h", "if (h_before.is_reset(b)) return;", "", "the gradient across a reset, by R",
           values("tanh")),
    Mutant("recurrence/cpu_backward.h", "    share.meet();  // all have done", "    // all have done",
           "the barrier between chunks", RACES),
    Mutant("recurrence/cpu_weight_gradient.h", "part = 1; part < count", "part = 2; part < count",
           "the second member's part of dR", DRAWN),
    Mutant("recurrence/cpu_weight_gradient.h", "smaller(unit1_ - head * units, units)", "units",
           "where a member's units end", DRAWN),
    # ---- the driver
    Mutant("recurrence/call.h", "    return dense(x);", "    return x;", "memory that is not contiguous",
           named("layouts")),
    Mutant("recurrence/call.h", "x.numel() == elements", "x.numel() >= elements", "the check of sizes",
           ("python_tests/ops/test_checks.py",)),
    Mutant("recurrence/call.h", "0 <= now && now <= before", "true", "the check of batch_sizes",
           ("python_tests/ops/test_checks.py",)),
    Mutant("recurrence/cpu_team.h", "elements * int64_t(sizeof(T)) <= small_room", "elements <= small_room",
           "how much the workspace of small calls holds", DRAWN),
    Mutant("recurrence/cpu_team.h", "second.room = workspace.begin + rooms[0]", "second.room = workspace.begin",
           "that two problems at once have a workspace each", BOTH),
    Mutant("common/team.h", "Member{rank - half * first,", "Member{rank,", "a place in half of a team", BOTH),
    Mutant("recurrence/cpu_team.h", "second.*input = &progress;", "", "that a layer waits for another at all", BOTH),
    Mutant("recurrence/cpu_forward.h", "p.below->wait(chunk.end)", "p.below->wait(begin)", "what a layer waits for",
           RACES),
    Mutant("recurrence/cpu_backward.h", "p.above->wait(p.steps.count - chunk.begin)", "p.above->wait(0)",
           "what a layer's gradient waits for", RACES),
    Mutant("recurrence/cpu.cpp", "if (same_as_dbias) std::memcpy", "if (false) std::memcpy", "the gradient of bias_ih",
           values("lstm")),
    Mutant("recurrence/cpu.cpp", "p.scale_row = per_sequence ? 1 : 0", "p.scale_row = 1", "a grad_scale of (T,)",
           values("tanh")),
    Mutant("recurrence/cpu.cpp", "omp_pause_resource_all(omp_pause_soft)", "(void)0", "the end of the team at a fork",
           ("python_tests/ops/test_process.py",)),
    Mutant("common/reuse.cpp", "at->size <= size + size / 4", "true", "how large a block serves",
           ("python_tests/ops/test_memory.py",)),
    Mutant("common/reuse.cpp", "    used_bytes -= block.size;\n    idle_bytes += block.size;",
           "    idle_bytes += block.size;", "the sum of what is in use", ("python_tests/ops/test_memory.py",)),
    Mutant("common/tensor.cpp", "if (torch_exception_get_what_without_backtrace)", "if (false)",
           "what PyTorch says of an allocation", ("python_tests/ops/test_process.py",)),
    Mutant("common/counters.cpp", "+= times", "= times", "the sum of counts", ("python_tests/ops/test_dispatch.py",),
           "of one part there is one address as yet: nothing is summed"),
    # ---- CUDA kernels and drivers, on the interpreter
    Mutant("recurrence/block_forward.h", "alive ? next[s] : state[v][s]", "next[s]", "the state after a sequence's end",
           interpreted("block and packed and tanh")),
    Mutant("recurrence/block_forward.h", "next_u = p.u + place(ahead, Cell::gates);\n      device::block_barrier();",
           "next_u = p.u + place(ahead, Cell::gates);", "the barrier between steps",
           interpreted("block and (tiny or first_call or any_schedule)")),
    Mutant("recurrence/block_forward.h", "bias[v][g] + (reset[v] ? A(0) : r[v][g])", "bias[v][g] + r[v][g]",
           "the reset of h", interpreted("block and reset and tanh")),
    Mutant("recurrence/block_backward.h", "grad[v][0] += scale[v] * product[v]", "grad[v][0] += product[v]",
           "grad_scale", interpreted("block and grad_scale and tanh")),
    Mutant("recurrence/block_backward.h", "reset[v] ? A(0) : grad[v][s]", "grad[v][s]", "the gradient across a reset",
           interpreted("block and reset and tanh")),
    Mutant("recurrence/block_backward.h", "p.dparams[i][element] += dparams", "p.dparams[i][element] = dparams",
           "the sum of a parameter's gradient over chunks", interpreted("block and several_chunks")),
    Mutant("recurrence/block_tile.h", "c[0][m][i] += c[chain][m][i]", "c[0][m][i] = c[chain][m][i]",
           "a sum of chains", interpreted("block and tiny")),
    Mutant("recurrence/cluster_forward.h", "alive ? now[s] : state[v][s]", "now[s]",
           "the state after a sequence's end", interpreted("everything_at_once", ON_CLUSTERS)),
    Mutant("recurrence/cluster_forward.h", "device::wait(arrived + k % 2, (k - 1) / 2 % 2)", "(void)0",
           "the wait for h", interpreted("first_call", ON_CLUSTERS)),
    Mutant("recurrence/cluster_forward.h", "device::wait(arrived + 2, k % 2)", "(void)0",
           "the wait for a second product's operand", interpreted("first_call and reset_before", ON_CLUSTERS)),
    Mutant("recurrence/cluster_forward.h", "next = (k + 1) % 2;", "next = 0;", "the buffer that h is sent to",
           interpreted("first_call", ON_CLUSTERS)),
    Mutant("recurrence/cluster_tile.h", "    device::block_barrier();\n", "", "the barrier before sums are read",
           interpreted("first_call or any_schedule", ON_CLUSTERS)),
    Mutant("recurrence/cluster_tile.h", "row_warp() * own[1] + m - own[0]", "row_warp() * own[1]",
           "the weights of a second product", interpreted("every_tile and reset_before and 377", ON_CLUSTERS)),
    Mutant("recurrence/cluster_tile.h", "const float mine = right ? beside : left", "const float mine = left",
           "which sequence's part of dh a lane sends", interpreted("everything_at_once", ON_CLUSTERS)),
    Mutant("recurrence/cluster_backward.h", "device::wait(barrier(g, turn), turn / 2 % 2)", "(void)0",
           "the wait for parts of dh", interpreted("first_call", ON_CLUSTERS)),
    Mutant("recurrence/cluster_backward.h", "return x + all % 2 * Tile::x_size;", "return x;",
           "dr while other warps still read the one before", interpreted("any_schedule", ON_CLUSTERS)),
    Mutant("recurrence/cluster_backward.h", "return parts + (2 * g + turn % 2) * parts_size;",
           "return parts + 2 * g * parts_size;",
           "parts of dh while they are being added up", interpreted("any_schedule", ON_CLUSTERS)),
    Mutant("recurrence/cluster_backward.h", "carry[v][0] += scale[v] * product[v]", "carry[v][0] += product[v]",
           "grad_scale", interpreted("everything_at_once", ON_CLUSTERS)),
    Mutant("recurrence/cluster_product.h", "return device::nearest_tfloat32(x);", "return x;", "what TF32 rounds",
           interpreted("everything_at_once", IN_TF32)),
    Mutant("recurrence/cuda_plan.cpp", "ScalarType::Float && allows_tf32()", "ScalarType::Float", "PyTorch's setting",
           interpreted("asks_anew", IN_TF32)),
    Mutant("recurrence/cuda_driver.h", "if (plan.tf32) return", "if (false) return", "that TF32 is what runs",
           interpreted("asks_anew", IN_TF32)),
    Mutant("relevancy/cluster_forward.h", "device::wait(arrived, int(t % 2));\n", "",
           "the waits for h and for parts of scores", interpreted("first_call", ATTENDING)),
    Mutant("relevancy/cluster_forward.h", "e += room.parts", "e = room.parts", "the sum of parts of scores",
           interpreted("first_call", ATTENDING)),
    Mutant("relevancy/cluster_forward.h", "room.values[place * D + i] = room.h[i];\n      device::block_barrier();\n",
           "room.values[place * D + i] = room.h[i];\n", "the barrier before others may send the next h",
           interpreted("any_schedule", ATTENDING)),
    Mutant("relevancy/sample_slots.h", "&& !given && k < slots", "&& !given", "that scores in R are frozen",
           interpreted("every_cell and everything", ATTENDING)),
    Mutant("relevancy/sample_tile.h", "T::column(first_packed + k)", "T::column(k)", "which columns are streamed",
           interpreted("shipped and 128", ATTENDING_BLOCKS)),
    Mutant("relevancy/sample_tile.h", "p.transposed ? 1 : p.n, column_step", "p.n, column_step",
           "that the backward streams columns", interpreted("shipped and 128", ATTENDING_BLOCKS)),
    Mutant("relevancy/sample_tile.h", "T::column(spread.held_keys + k)", "T::column(k)",
           "which columns of U_a lie in shared memory", interpreted("shipped and 128", ATTENDING_BLOCKS)),
    Mutant("relevancy/attend_backward.h", "exponential(alpha[place] - most)", "exponential(alpha[place])",
           "the largest score in weights that are made again", interpreted("large_scores", ATTENDING_BLOCKS)),
    Mutant("recurrence/grid_words.h", "words[f].w != tag", "words[f].w == 0", "whose step a word is of",
           interpreted("every_cell and lstm", ON_THE_GRID)),
    Mutant("recurrence/grid_forward.h", "exchanges + exchange) * 2 + step % 2) * size.sets + set;",
           "exchanges + exchange) * 2) * size.sets + set;", "the second buffer of h",
           interpreted("any_schedule or every_cell", ON_THE_GRID)),
    Mutant("recurrence/grid_backward.h", "(at.group * 2 + step % 2) * size.sets", "(at.group * 2) * size.sets",
           "the second buffer of dr", interpreted("any_schedule or every_cell", ON_THE_GRID)),
    Mutant("recurrence/grid_forward.h", "(reset ? A(0) : Partials::sum(partials, first_gates, g))",
           "Partials::sum(partials, first_gates, g)", "the reset of h",
           interpreted("every_cell and lstm", ON_THE_GRID)),
    Mutant("recurrence/grid_backward.h", "grad[0] += scale * product;", "grad[0] += product;", "grad_scale",
           interpreted("every_cell and tanh", ON_THE_GRID)),
    Mutant("recurrence/grid_backward.h", "p.dparams[i][element] +=", "p.dparams[i][element] =",
           "the sum of a parameter's gradient over chunks", interpreted("several_chunks", ON_THE_GRID)),
    Mutant("recurrence/grid_tile.h", "reader.request(n + flight, count);\n    RNNKERN_UNROLL",
           "reader.request(n, count);\n    RNNKERN_UNROLL", "the words of a later round",
           interpreted("as_shipped", ON_THE_GRID)),
    Mutant("recurrence/step.h", "if (p.sequence.resets(p.finished, b))", "if (false)", "the gradient across a reset",
           interpreted("stepwise and reset and tanh")),
    Mutant("recurrence/step.h", "p.dr[((head * p.rows + p.here + b)", "p.dr[((head * p.rows + b)",
           "the place of a step's dr", interpreted("stepwise and heads")),
    Mutant("recurrence/cuda_backward.cpp", "p.alive > finished_alive ? p.alive : finished_alive", "p.alive",
           "the threads that finish a step", interpreted("stepwise and packed")),
    Mutant("recurrence/cuda_backward.cpp", "write<A>(dR_sum) + first * head_size * head_size", "write<A>(dR_sum)",
           "where the second product's dR lies", interpreted("tiny and gru_reset_before")),
    Mutant("recurrence/cuda_driver.h", "lengths[--b] = t;", "lengths[--b] = t + 1;", "the length of a sequence",
           interpreted("block and packed and tanh")),
    Mutant("recurrence/cuda_forward.cpp", "read<bool>(*call.reset) + t * batch", "read<bool>(*call.reset)",
           "the step whose resets are read", interpreted("stepwise and reset and tanh")),
    Mutant("recurrence/cuda_noise.h", "unit - word * part", "unit", "which unit a draw is for",
           interpreted("stepwise and zoneout and tanh")),
    Mutant("recurrence/step.h", "seen(scale(p.finished) *", "(scale(p.finished) *",
           "dropout of what flows back through R", interpreted("stepwise and dropout and tanh")),
    Mutant("recurrence/step.h", "next[0] = p.candidates[(p.row + b) * hidden + column]", "next[0] = next[0]",
           "h before zoneout took the mean", interpreted("stepwise and mean and tanh")),
    Mutant("recurrence/cuda_backward.cpp", "add_product(own, dropped, rows", "add_product(own, previous, rows",
           "what dR sees of h", interpreted("stepwise and dropout and tanh")),
    # ---- the closeness rule
    Mutant(CLOSENESS, "torch.float32: 4.0", "torch.float32: 6.0", "the factor of float32", RULE),
    Mutant(CLOSENESS, "torch.bfloat16: 2.0", "torch.bfloat16: 3.0", "the factor of bfloat16", RULE),
    Mutant(CLOSENESS, "torch.float16: 2.0", "torch.float16: 3.0", "the factor of float16", RULE),
    Mutant(CLOSENESS, "torch.float64: 4.0", "torch.float64: 6.0", "the factor of float64", RULE),
    Mutant(CLOSENESS, "assert actual.shape == truth.shape == naive.shape",
           "assert actual.shape == truth.shape", "the shape of the naive result", RULE),
    Mutant(CLOSENESS, "assert actual.dtype == naive.dtype", "assert True", "the dtype", RULE),
    Mutant(CLOSENESS, "assert actual.device == naive.device", "assert True", "the device", RULE),
    Mutant(CLOSENESS, "(a == n) | (a.isnan() & n.isnan())", "~a.isfinite()", "which infinity", RULE),
    Mutant(CLOSENESS, "torch.where(n.isfinite(), a.isfinite(),", "torch.where(n.isfinite(), True,",
           "what is not finite where the naive result is", RULE),
    Mutant(CLOSENESS, "n.isfinite() & t.isfinite()", "n.isfinite()", "an infinite truth", RULE),
    Mutant(CLOSENESS, "factor * max(naive_error, floor)", "factor * (naive_error + floor)",
           "a floor that is added", RULE),
    Mutant(CLOSENESS, "floor = max(naive_rms, eps * scale)", "floor = max(naive_rms, 4 * eps * scale)",
           "the floor of the largest error and of the bias", RULE),
    Mutant(CLOSENESS, "rms, naive_rms, eps * scale)", "rms, naive_rms, 4 * eps * scale)",
           "the floor of the root mean square", RULE),
    Mutant(CLOSENESS, "3 * floor)", "12 * floor)", "the floor of the largest error", RULE),
    Mutant(CLOSENESS, "a.numel() > 1000 and", "a.numel() > 100_000 and", "the least size of the last tests",
           RULE),
    Mutant(CLOSENESS, "1000 and scale > 0", "1000", "a truth of zeros, which has no direction", RULE),
    Mutant(CLOSENESS, "_sine(n, t), max(eps, rounding)", "_sine(n, t), 100 * eps",
           "the floor of the sine", RULE),
    Mutant(CLOSENESS, "max(eps, rounding))", "eps)", "what rounding the sine itself takes", RULE),
    Mutant(CLOSENESS, "floor / 8)", "floor)", "the floor of the bias", RULE),
    Mutant(CLOSENESS, "(x - along * truth).norm()", "(x - truth).norm()", "length in the direction", RULE),
    Mutant("rnnkern/testing/recurrence.py", "for name in actual:\n", "for name in list(actual)[:3]:\n",
           "the gradients after the first", RULE),
]  # fmt: skip
