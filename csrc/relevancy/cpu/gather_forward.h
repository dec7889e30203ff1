// out_t = sum_j alpha_j h_j with alpha = softmax(e), e_j = v . tanh(q_t + u_j) or v . (q_t u_j).
// Included once per SIMD level.
#pragma once

#include "relevancy/cpu/attention.h"
#include "relevancy/cpu/gather_problem.h"

namespace rnnkern {
namespace {

inline bool is_member(int32_t j, const GatherSizes& sizes) { return j >= 0 && j < sizes.memories; }

template <class T>
struct GatherForwardWorkspace {
  T* scores;
  int32_t* members;  // the slots with a valid index
  const T** keys;    // of these slots

  GatherForwardWorkspace(const GatherForward<T>& problem, Workspace<T>& workspace, ThreadContext me)
      : scores(workspace.alloc(problem.sizes.slots, me)),
        members(workspace.template alloc_as<int32_t>(problem.sizes.slots, me)),
        keys(workspace.template alloc_as<const T*>(problem.sizes.slots, me)) {}
};

template <bool dot, class T>
void gather_row(const GatherForward<T>& problem, int64_t row, const GatherForwardWorkspace<T>& workspace) {
  using V = Vec<T>;
  const GatherSizes& sizes = problem.sizes;
  const int64_t n = sizes.hidden, b = row / sizes.steps;
  const T *const q = problem.q + row * n, *const v = problem.v + b / sizes.share * n;
  const T *const u = problem.u + b * sizes.memories * n, *const h = problem.h + b * sizes.memories * n;
  const int32_t* const idx = problem.idx + row * sizes.slots;
  T *const out = problem.out + row * n, *const e = workspace.scores;
  int32_t* const members = workspace.members;

  int64_t count = 0, k;
  for (int64_t slot = 0; slot < sizes.slots; ++slot) {
    if (!is_member(idx[slot], sizes)) continue;
    workspace.keys[count] = u + idx[slot] * n;
    members[count++] = int32_t(slot);
  }
  align<dot>(q, workspace.keys, count, v, 0, n, e);

  T most = -std::numeric_limits<T>::infinity();
  double sum = 0;
  for (k = 0; k < count; ++k) most = e[k] > most ? e[k] : most;
  for (k = 0; k < count; ++k) sum += e[k] = std::exp(e[k] - most);
  for (k = 0; k < count; ++k) e[k] = T(e[k] / sum);
  if (problem.lse) problem.lse[row] = count ? T(most + std::log(sum)) : 0;
  if (problem.weights) {
    T* const weights = problem.weights + row * sizes.slots;
    std::memset(weights, 0, sizeof(T) * sizes.slots);
    for (k = 0; k < count; ++k) weights[members[k]] = e[k];
  }
  for (int64_t unit = 0; unit < n; unit += V::width) {
    const auto term = [&](int64_t k)
                          RNNKERN_INLINE_LAMBDA { return V(e[k]) * V::load(h + idx[members[k]] * n + unit, n - unit); };
    V a(0), b(0), c(0), d(0);
    for (k = 0; k + 4 <= count; k += 4) {
      a = a + term(k);
      b = b + term(k + 1);
      c = c + term(k + 2);
      d = d + term(k + 3);
    }
    for (; k < count; ++k) a = a + term(k);
    ((a + b) + (c + d)).store(out + unit, n - unit);
  }
}

template <class T>
void gather_forward(const GatherForward<T>& problem, Range rows, ThreadContext me) {
  const auto workspace = lay_out<GatherForwardWorkspace<T>>(problem, me);
  const auto row = problem.dot ? gather_row<true, T> : gather_row<false, T>;
  const auto [first, last] = me.share(rows.end - rows.begin);
  for (int64_t at = first; at < last; ++at) row(problem, rows.begin + at, workspace);
}

}  // namespace
}  // namespace rnnkern
