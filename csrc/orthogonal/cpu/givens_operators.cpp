// Products and recurrences with layers of Givens rotations on a CPU: the checks needed for memory safety, allocation,
// the order of the layers, and the number of threads.
#include <algorithm>

#include "cpu/levels.h"
#include "cpu/run.h"
#include "orthogonal/cpu/givens_problem.h"
#include "orthogonal/givens_check.h"

namespace rnnkern {
namespace {

constexpr int64_t worth_sharing = 32768;  // rotations per thread

template <class Problem>
void run(Kernel<Problem> kernel, const Problem& problem, int64_t rotations, const Tensor& like) {
  rnnkern::run(kernel, problem, at_most_all(1 + rotations / worth_sharing), like);
}

// ---- products

constexpr const char* product_dtypes = "givens_product: `angles` must be float32 or float64";

// Makes the arguments contiguous, and checks that their product_dtypes and sizes match.
GivensSizes check_product(Tensor& angles, Tensor& x, bool columns, bool butterfly) {
  STD_TORCH_CHECK(angles.dim() >= 2 && x.dim() == angles.dim(),
                  "givens_product: `angles` must be (..., L, N / 2), `x` (..., R, N) or (..., N, R)");
  STD_TORCH_CHECK(x.scalar_type() == angles.scalar_type(), "givens_product: `x` must be of the dtype of `angles`");
  GivensSizes sizes{.count = 1,
                    .vectors = x.size(columns ? -1 : -2),
                    .size = x.size(columns ? -2 : -1),
                    .layers = angles.size(-2),
                    .columns = columns,
                    .butterfly = butterfly};
  bool fit = angles.size(-1) == sizes.size / 2;
  for (int64_t k = 0; k < angles.dim() - 2; ++k) {
    fit = fit && x.size(k) == angles.size(k);
    sizes.count *= angles.size(k);
  }
  STD_TORCH_CHECK(fit, "givens_product: `angles` must be (..., L, N / 2) for the N and the batch of `x`");
  STD_TORCH_CHECK(!butterfly || (sizes.size & (sizes.size - 1)) == 0, "givens_product: N must be a power of two");
  angles = dense(angles);
  x = dense(x);
  return sizes;
}

int64_t rotations(const GivensSizes& sizes) { return sizes.count * sizes.vectors * sizes.angles(); }

// ---- recurrences

constexpr int64_t reals_in_cache = 128;  // per lane: two tiles of this size, of values and of gradients, fit the cache

// An order in which a piece of the state stays in the cache for as many layers as possible. With neighbouring pairs,
// the piece of a layer begins one element before that of the previous layer, on which it depends. With butterflies, a
// piece covers consecutive layers whose pairs all lie within it.
std::vector<GivensPiece> pieces_of(const GivensSizes& sizes, int64_t length) {
  std::vector<GivensPiece> found;
  const auto add = [&](int64_t layer, int64_t first) {
    const int64_t last = std::min(first + length / 2, layer_of(sizes, layer).pairs);
    first = std::max<int64_t>(first, 0);
    if (first < last) found.push_back({layer, first, last});
  };
  if (!sizes.butterfly) {
    for (int64_t begin = 0; begin < sizes.size + sizes.layers; begin += length)
      for (int64_t layer = 0; layer < sizes.layers; ++layer) add(layer, (begin - layer - layer % 2) / 2);
    return found;
  }
  const auto reach = [&](int64_t layer) { return 2 * layer_of(sizes, layer).stride; };
  for (int64_t layer = 0, next; layer < sizes.layers; layer = next) {
    next = layer + 1;
    while (next < sizes.layers && reach(next) > reach(next - 1) && reach(next) <= length) ++next;
    for (int64_t first = 0; first < sizes.pairs(); first += length / 2)
      for (int64_t k = layer; k < next; ++k) add(k, first);
  }
  return found;
}

// The arguments of a call, and the order of its layers.
struct Call : GivensCall {
  std::vector<GivensPiece> pieces;

  template <class... Arguments>
  explicit Call(const Arguments&... arguments)
      : GivensCall(arguments...), pieces(pieces_of(sizes, reals_in_cache / parts())) {}

  template <class Problem, class T>
  Problem problem() const {
    Problem made{};
    made.sizes = sizes;
    made.sequences = sequences;
    made.pieces = pieces.data();
    made.piece_count = int64_t(pieces.size());
    made.angles = read<T>(angles);
    made.phases = read<T>(phases);
    made.diagonal = read<T>(diagonal);
    made.bias = read<T>(bias);
    made.u = read<T>(u);
    made.h0 = read<T>(h0);
    return made;
  }

  int64_t rotations() const { return u.numel() / std::max<int64_t>(1, sizes.size) * sizes.angles(); }
};

const char* family(const Call& call) {
  return call.phases ? "givens_recurrence/cpu/complex" : "givens_recurrence/cpu/real";
}

// Applies all layers to the vectors of x: its rows (..., R, N), or its columns (..., N, R). angles are (..., L, N / 2),
// with the batch dimensions of x.
Tensor givens_product_cpu(Tensor angles, Tensor x, bool columns, bool butterfly) {
  const GivensSizes sizes = check_product(angles, x, columns, butterfly);
  return by_float_or_double(angles, product_dtypes, [&](auto zero) {
    using T = decltype(zero);
    const Tensor y = empty_of_sizes(x, x);
    if (!y.numel()) return y;
    count_kernel("givens_product/cpu", "forward", angles);
    const GivensForward<T> problem{.sizes = sizes, .angles = read<T>(angles), .x = read<T>(x), .y = write<T>(y)};
    run(kernels_in_use<GivensKernels<T>>().forward, problem, rotations(sizes), angles);
    return y;
  });
}

// Returns [dangles, and if wanted: dx]; y is the forward's result.
Tensors givens_product_backward_cpu(Tensor grad, Tensor angles, Tensor y, bool columns, bool butterfly, bool needs_x) {
  const GivensSizes sizes = check_product(angles, y, columns, butterfly);
  STD_TORCH_CHECK(grad.numel() == y.numel() && grad.scalar_type() == y.scalar_type(),
                  "givens_product_backward: `grad` must be of the size and dtype of `y`");
  grad = dense(grad);
  return by_float_or_double(angles, product_dtypes, [&](auto zero) {
    using T = decltype(zero);
    Tensors results = {empty_of_sizes(angles, angles)};
    if (needs_x) results.push_back(empty_of_sizes(y, y));
    if (!y.numel()) {
      fill_zero(results[0]);
      return results;
    }
    count_kernel("givens_product/cpu", "backward", angles);
    const GivensBackward<T> problem{.sizes = sizes,
                                    .angles = read<T>(angles),
                                    .y = read<T>(y),
                                    .grad = read<T>(grad),
                                    .grad_angles = write<T>(results[0]),
                                    .grad_x = needs_x ? write<T>(results[1]) : nullptr};
    run(kernels_in_use<GivensKernels<T>>().backward, problem, rotations(sizes), angles);
    return results;
  });
}

// Returns [h, the final state (B, C)]. C is N or, for complex numbers, which have `phases` and `diagonal`, 2 N. `u` is
// (T, B, C), or (rows, C) with `batch_sizes`; `angles` and `phases` are (L, N / 2), `diagonal` and `bias` (N,).
Tensors givens_recurrence_cpu(Tensor u, Tensor angles, OptionalTensor phases, OptionalTensor diagonal, Tensor bias,
                              Tensor h0, OptionalTensor batch_sizes, OptionalTensor reset, bool reverse,
                              bool butterfly) {
  const Call call(u, angles, phases, diagonal, bias, h0, batch_sizes, reset, reverse, butterfly);
  return by_dtype_of_givens(call.u, [&](auto zero) {
    using T = decltype(zero);
    const Tensors results = call.results(empty_of_sizes(call.u, call.u));  // PyTorch cannot copy pooled memory lazily
    if (call.is_empty(results, h0)) return results;
    count_kernel(family(call), "forward", call.u);
    auto problem = call.problem<GivensRecurrenceForward<T>, T>();
    problem.h = write<T>(results[0]);
    problem.last = write<T>(results[1]);
    run(kernels_in_use<GivensKernels<T>>().recurrence_forward, problem, call.rotations(), call.u);
    return results;
  });
}

// Returns [du, dangles, dbias, dh0, for complex numbers: dphases, ddiagonal]. `h` is the forward's result; missing
// gradients are zero.
Tensors givens_recurrence_backward_cpu(OptionalTensor grad_h, OptionalTensor grad_last, Tensor u, Tensor angles,
                                       OptionalTensor phases, OptionalTensor diagonal, Tensor bias, Tensor h0, Tensor h,
                                       OptionalTensor batch_sizes, OptionalTensor reset, bool reverse, bool butterfly) {
  const Call call(u, angles, phases, diagonal, bias, h0, batch_sizes, reset, reverse, butterfly);
  call.make_dense(h, grad_h, grad_last);
  return by_dtype_of_givens(call.u, [&](auto zero) {
    using T = decltype(zero);
    const Tensors results = call.gradients(reusable_like(call.u));
    if (call.is_empty(results, grad_last)) return results;
    count_kernel(family(call), "backward", call.u);
    auto problem = call.problem<GivensRecurrenceBackward<T>, T>();
    problem.h = read<T>(h);
    problem.grad_h = read<T>(grad_h);
    problem.grad_last = read<T>(grad_last);
    problem.grad_u = write<T>(results[0]);
    problem.grad_angles = write<T>(results[1]);
    problem.grad_bias = write<T>(results[2]);
    problem.grad_h0 = write<T>(results[3]);
    problem.grad_phases = phases ? write<T>(results[4]) : nullptr;
    problem.grad_diagonal = phases ? write<T>(results[5]) : nullptr;
    run(kernels_in_use<GivensKernels<T>>().recurrence_backward, problem, call.rotations(), call.u);
    return results;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) {
  m.impl("givens_product", TORCH_BOX(&givens_product_cpu));
  m.impl("givens_product_backward", TORCH_BOX(&givens_product_backward_cpu));
  m.impl("givens_recurrence", TORCH_BOX(&givens_recurrence_cpu));
  m.impl("givens_recurrence_backward", TORCH_BOX(&givens_recurrence_backward_cpu));
}

}  // namespace rnnkern
