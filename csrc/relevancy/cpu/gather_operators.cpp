// gather_attention on a CPU: the checks needed for memory safety, allocation, and the number of threads.
#include "cpu/levels.h"
#include "cpu/run.h"
#include "relevancy/cpu/gather_problem.h"

namespace rnnkern {
namespace {

constexpr int64_t worth_sharing = 16384;  // work per thread, in pairs times units, each about one tanh

constexpr const char* dtypes = "gather_attention: `q` must be float32 or float64";

// Makes the arguments contiguous, and checks that their dtypes and sizes match.
GatherSizes check(Tensor& q, Tensor& u, Tensor& h, Tensor& idx, Tensor& v) {
  STD_TORCH_CHECK(q.dim() == 3 && u.dim() == 3 && h.dim() == 3 && idx.dim() == 3 && v.dim() == 2,
                  "gather_attention: `q`, `u`, `h` and `idx` must have three dimensions, `v` two");
  for (const Tensor* x : {&u, &h, &v})
    STD_TORCH_CHECK(x->scalar_type() == q.scalar_type(), "gather_attention: `q`, `u`, `h`, `v` must be of one dtype");
  STD_TORCH_CHECK(idx.scalar_type() == ScalarType::Int, "gather_attention: `idx` must be int32");
  const int64_t batch = q.size(0), hidden = q.size(2), groups = v.size(0);
  bool fit = u.size(0) == batch && u.size(2) == hidden && v.size(1) == hidden && groups > 0 && batch % groups == 0;
  fit = fit && h.size(0) == batch && h.size(1) == u.size(1) && h.size(2) == hidden;
  STD_TORCH_CHECK(
      fit && idx.size(0) == batch && idx.size(1) == q.size(1),
      "gather_attention: `u` and `h` must be (B, M, n), `idx` (B, T, kappa), `v` (G, n) for (B, T, n) of `q`");
  for (Tensor* x : {&q, &u, &h, &idx, &v}) *x = dense(*x);
  return {batch, q.size(1), u.size(1), idx.size(2), hidden, batch / groups};
}

template <class T>
GatherProblem<T> problem_of(const GatherSizes& sizes, bool dot, const Tensor& q, const Tensor& u, const Tensor& h,
                            const Tensor& idx, const Tensor& v) {
  return {sizes, dot, read<T>(q), read<T>(u), read<T>(h), read<T>(v), read<int32_t>(idx), nullptr};
}

// Threads take separate parts if there are enough of them.
template <class Problem>
void run(KernelOfParts<Problem> kernel, const Problem& problem, int64_t parts, const Tensor& like) {
  const GatherSizes& sizes = problem.sizes;
  const int threads = at_most_all(1 + sizes.batch * sizes.steps * sizes.slots * sizes.hidden / worth_sharing);
  run_parts(kernel, problem, parts, parts >= threads, threads, like);
}

// Returns [out, when training: the log-sum-exp of each row's scores (B, T), if wanted: weights (B, T, kappa)]. v is (G,
// n), one row for every B / G samples; an index outside 0..M-1 is skipped.
Tensors gather_attention_cpu(Tensor q, Tensor u, Tensor h, Tensor idx, Tensor v, bool dot, bool training,
                             bool weights) {
  const GatherSizes sizes = check(q, u, h, idx, v);
  return by_float_or_double(q, dtypes, [&](auto zero) {
    using T = decltype(zero);
    Tensors results = {empty_of_sizes(q, q)};
    if (training) results.push_back(empty(q, {sizes.batch, sizes.steps}));
    if (weights) results.push_back(empty_of_sizes(q, idx, q.scalar_type()));
    if (!q.numel()) return results;
    count_kernel("gather_attention/cpu", "forward", q);
    const GatherForward<T> problem{problem_of<T>(sizes, dot, q, u, h, idx, v), write<T>(results[0]),
                                   training ? write<T>(results[1]) : nullptr,
                                   weights ? write<T>(results.back()) : nullptr};
    run(kernels_in_use<GatherKernels<T>>().forward, problem, sizes.batch * sizes.steps, q);
    return results;
  });
}

// Returns [dq, du, dh, dv]; `lse` is the forward's log-sum-exp.
Tensors gather_attention_backward_cpu(Tensor grad, Tensor q, Tensor u, Tensor h, Tensor idx, Tensor v, Tensor lse,
                                      bool dot) {
  const GatherSizes sizes = check(q, u, h, idx, v);
  for (const Tensor* x : {&grad, &lse})
    STD_TORCH_CHECK(x->scalar_type() == q.scalar_type(), "gather_attention_backward: all must be of the dtype of `q`");
  STD_TORCH_CHECK(grad.numel() == q.numel() && lse.numel() == sizes.batch * sizes.steps,
                  "gather_attention_backward: `grad` and `lse` must be as the forward made them");
  for (Tensor* x : {&grad, &lse}) *x = dense(*x);
  return by_float_or_double(q, dtypes, [&](auto zero) {
    using T = decltype(zero);
    const Tensors results = {empty_of_sizes(q, q), empty_of_sizes(q, u), empty_of_sizes(q, h), empty_of_sizes(q, v)};
    fill_zero(results[3]);
    if (!sizes.batch || !sizes.hidden) return results;
    count_kernel("gather_attention/cpu", "backward", q);
    const Tensor each = empty(q, {sizes.batch, sizes.hidden});
    const GatherBackward<T> problem{problem_of<T>(sizes, dot, q, u, h, idx, v),
                                    read<T>(grad),
                                    read<T>(lse),
                                    write<T>(results[0]),
                                    write<T>(results[1]),
                                    write<T>(results[2]),
                                    write<T>(each)};
    run(kernels_in_use<GatherKernels<T>>().backward, problem, sizes.batch, q);
    for (int64_t group = 0; group < v.size(0); ++group)
      sum_rows<T>(read<T>(each) + group * sizes.share * sizes.hidden, sizes.share, sizes.hidden,
                  write<T>(results[3]) + group * sizes.hidden);
    return results;
  });
}

}  // namespace

STABLE_TORCH_LIBRARY_IMPL(rnnkern, CPU, m) {
  m.impl("gather_attention", TORCH_BOX(&gather_attention_cpu));
  m.impl("gather_attention_backward", TORCH_BOX(&gather_attention_backward_cpu));
}

}  // namespace rnnkern
