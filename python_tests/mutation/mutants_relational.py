"""Mutants of similarity and of ESBN's recurrence."""

from python_tests.mutation.mutant import Mutant, named, valued

FILE = "python_tests/ops/test_similarity.py"
VALUES = valued("similarity")
PRECISION = named("constant_features or subnormal", FILE)
TRITON = named("interpreter_finds and similarity", "python_tests/gpu/test_triton.py")
ON_A_GPU = "rnnkern/triton/similarity.py"
BINDING = "rnnkern/reference/_relational.py"
LOOP = named("published_loop", "python_tests/ops/test_binding_recurrence.py")

RELATIONAL = [
    Mutant("relational/cpu/objects.h", "end - begin - rule.correction, 1", "end - begin, 1",
           "n - 1 in the variance", VALUES),
    Mutant("relational/cpu/objects.h", "end - begin > 1 ? V(1)", "end - begin > 0 ? V(1)",
           "that a single object becomes the bias", named("single_object", FILE)),
    Mutant("relational/cpu/objects.h", "row >= column", "row > column", "the diagonal of the causal mask", VALUES),
    Mutant("relational/cpu/objects.h", "row > column :", "row >= column :", "the diagonal of the strict mask", VALUES),
    Mutant("relational/cpu/objects.h", "- first[v]) - mean[v]) * factor[v]", "- first[v])) * factor[v]",
           "the mean in z", VALUES),
    Mutant("relational/cpu/objects.h", "select(abs(x) < Vec<T>(std::numeric_limits<T>::min()), Vec<T>(0), x)", "x",
           "that no subnormal number leaves the kernel", PRECISION),
    Mutant("relational/cpu/objects.h", "lower ? i + tile_rows : n", "lower ? i : n",
           "the products next to the diagonal", VALUES),
    Mutant("relational/cpu/forward.h", "select(nobody, V(0), normal_or_zero(share))", "normal_or_zero(share)",
           "rows without members", VALUES),
    Mutant("relational/cpu/forward.h", "for (int64_t j = members; j < width; ++j) to[j] = 0;", "",
           "the zeros of R", VALUES),
    Mutant("relational/cpu/backward.h", "(V::load(grad + j * ld + i) - along)", "V::load(grad + j * ld + i)",
           "the softmax's mean in its gradient", VALUES),
    Mutant("relational/cpu/backward.h", "w.grad[j * ld + i] + w.grad[i * ld + j]", "w.grad[j * ld + i]",
           "the transpose in the gradient of Z Z^T", VALUES),
    Mutant("relational/cpu/backward.h", "through(w.y, w.x.z, ld, 1, p.grad_y)", "through(w.y, w.x.z, 1, ld, p.grad_y)",
           "the transpose in the gradient of y", VALUES),
    Mutant("relational/cpu/backward.h", "end - begin - rule.correction, 1", "end - begin, 1",
           "n - 1 in the gradient of the variance", VALUES),
    Mutant("relational/cpu/backward.h", "sum[v] = share * sum[v];", "", "the mean of the gradient", VALUES),
    Mutant("relational/cpu/backward.h", "V::load(grad_weight + v * V::width, lanes) + along[v]", "along[v]",
           "the sum over the samples of a piece", VALUES),
    Mutant(ON_A_GPU, "grad = grad + tl.trans(grad)", "grad = grad + grad", "the transpose in the gradient of Z Z^T",
           TRITON),
    Mutant(ON_A_GPU, "found = tl.where(found < TINY, 0.0, found)", "found = found",
           "that no subnormal number leaves the kernel", TRITON),
    Mutant(ON_A_GPU, "of_x = tl.dot(grad, z_y,", "of_x = tl.dot(grad, z,", "which branch a gradient comes from",
           TRITON),
    Mutant(BINDING, "if t < objects - 1:", "if t < objects - 2:", "the key of the last object but one", LOOP),
    Mutant(BINDING, "read = gate * torch.cat([bound, conf[:, t : t + 1]], 1)",
           "read = torch.cat([gate * bound, conf[:, t : t + 1]], 1)", "the gate of the confidence", LOOP),
]  # fmt: skip
