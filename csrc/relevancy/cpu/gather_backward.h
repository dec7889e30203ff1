// The backward of gather_attention. A team of threads processes a sample in tiles of rows. First each thread takes some
// of the pairs (row, position in its list), to compute their weights and tanh; then some of the units, for which it
// adds the gradients pair by pair, so that sums do not depend on the number of threads. Included once per SIMD level.
#pragma once

#include "relevancy/cpu/gather_forward.h"

namespace rnnkern {
namespace {

constexpr int64_t pairs_of_tile = 256;  // or those of one row, if these are more

template <class T>
struct GatherBackwardWorkspace {
  int64_t rows, stride;          // rows of a tile; distance between the tanh of consecutive pairs
  T *tanh, *alpha, *grad_alpha;  // of the pairs of a tile
  T *weight, *grad_e;            // of a row
  int32_t* members;              // its slots with a valid index
  T* grad_v;                     // of a tile

  GatherBackwardWorkspace(const GatherBackward<T>& problem, Workspace<T>& workspace, ThreadContext me)
      : rows(larger(1, pairs_of_tile / larger(1, problem.sizes.slots))),
        stride((problem.sizes.hidden + 15) / 16 * 16),
        tanh(workspace.alloc(problem.dot ? 0 : rows * problem.sizes.slots * stride)),
        alpha(workspace.alloc(rows * problem.sizes.slots)),
        grad_alpha(workspace.alloc(rows * problem.sizes.slots)),
        weight(workspace.alloc(problem.sizes.slots, me)),
        grad_e(workspace.alloc(problem.sizes.slots, me)),
        members(workspace.template alloc_as<int32_t>(problem.sizes.slots, me)),
        grad_v(workspace.alloc(stride)) {}
};

// Pointers to the tensors of a sample.
template <class T>
struct GatherSample {
  const T *q, *u, *h, *v, *grad, *lse;
  const int32_t* idx;
  T *grad_q, *grad_u, *grad_h, *grad_v;

  GatherSample(const GatherBackward<T>& x, int64_t b) {
    const int64_t n = x.sizes.hidden, rows = b * x.sizes.steps, memories = b * x.sizes.memories;
    q = x.q + rows * n, grad = x.grad + rows * n, grad_q = x.grad_q + rows * n;
    u = x.u + memories * n, grad_u = x.grad_u + memories * n;
    h = x.h + memories * n, grad_h = x.grad_h + memories * n;
    v = x.v + b / x.sizes.share * n, grad_v = x.grad_v + b * n;
    lse = x.lse + rows, idx = x.idx + rows * x.sizes.slots;
  }
};

// Processes pairs first..last-1 of the tile that begins at row t.
template <bool dot, class T>
void weigh_pairs(const GatherSample<T>& of, const GatherSizes& sizes, const GatherBackwardWorkspace<T>& workspace,
                 int64_t t, int64_t first, int64_t last) {
  using V = Vec<T>;
  const int64_t n = sizes.hidden;
  const int32_t* const idx = of.idx + t * sizes.slots;
  for (int64_t p = first; p < last; ++p) {
    if (!is_member(idx[p], sizes)) continue;
    const int64_t row = t + p / sizes.slots;
    const T *const q = of.q + row * n, *const grad = of.grad + row * n;
    const T *const u = of.u + idx[p] * n, *const h = of.h + idx[p] * n;
    V e(0), grad_alpha(0);
    for (int64_t k = 0; k < n; k += V::width) {
      const V x = aligned<dot>(V::load(q + k, n - k), V::load(u + k, n - k));
      if constexpr (!dot) x.store(workspace.tanh + p * workspace.stride + k);
      e = e + V::load(of.v + k, n - k) * x;
      grad_alpha = grad_alpha + V::load(grad + k, n - k) * V::load(h + k, n - k);
    }
    workspace.alpha[p] = std::exp(horizontal_sum(e) - of.lse[row]);
    workspace.grad_alpha[p] = horizontal_sum(grad_alpha);
  }
}

// For the row of the tile whose list is `idx`: the weights, renormalised because rounding of the log-sum-exp moves
// their sum from 1; the gradients of the scores, alpha_j (dalpha_j - sum_i alpha_i dalpha_i); and the slots with a
// valid index, of which it returns the number.
template <class T>
int64_t through_softmax(const int32_t* idx, const GatherSizes& sizes, const GatherBackwardWorkspace<T>& workspace,
                        int64_t row) {
  const T *const alpha = workspace.alpha + row * sizes.slots, *const grad_alpha =
                                                                  workspace.grad_alpha + row * sizes.slots;
  int32_t* const members = workspace.members;
  int64_t count = 0;
  double mass = 0, along = 0;
  for (int64_t slot = 0; slot < sizes.slots; ++slot)
    if (is_member(idx[slot], sizes)) {
      members[count++] = int32_t(slot);
      mass += alpha[slot];
    }
  for (int64_t c = 0; c < count; ++c) along += alpha[members[c]] / mass * grad_alpha[members[c]];
  for (int64_t c = 0; c < count; ++c) {
    const double weight = alpha[members[c]] / mass;
    workspace.weight[c] = T(weight);
    workspace.grad_e[c] = T(weight * (grad_alpha[members[c]] - along));
  }
  return count;
}

// Processes units first..last-1 of `rows` rows from t on. If `last` is the end of the row, the last vector is partial.
template <bool dot, class T>
void add_up_pairs(const GatherSample<T>& of, const GatherSizes& sizes, const GatherBackwardWorkspace<T>& workspace,
                  int64_t t, int64_t rows, int64_t first, int64_t last) {
  using V = Vec<T>;
  const auto add = [](T* to, V x, int64_t some) RNNKERN_INLINE_LAMBDA { (V::load(to, some) + x).store(to, some); };
  const int32_t* const members = workspace.members;
  const int64_t n = sizes.hidden;
  for (int64_t k = first; k < last; k += V::width) V(0).store(workspace.grad_v + k);
  for (int64_t row = 0; row < rows; ++row) {
    const int32_t* const idx = of.idx + (t + row) * sizes.slots;
    const int64_t count = through_softmax(idx, sizes, workspace, row), at = (t + row) * n;
    const T* const tanh = workspace.tanh + row * sizes.slots * workspace.stride;
    for (int64_t k = first; k < last; k += V::width) {
      const int64_t some = last - k;
      const V q = V::load(of.q + at + k, some), v = V::load(of.v + k, some), grad = V::load(of.grad + at + k, some);
      const auto pair = [&](int64_t c, V& to_q, V& to_v) RNNKERN_INLINE_LAMBDA {
        const V weight(workspace.weight[c]), grad_e(workspace.grad_e[c]);
        const int64_t memory = idx[members[c]] * n + k;
        add(of.grad_h + memory, weight * grad, some);
        if constexpr (dot) {
          const V u = V::load(of.u + memory, some);
          add(of.grad_u + memory, grad_e * v * q, some);
          to_q = to_q + grad_e * u;
          to_v = to_v + grad_e * (q * u);
        } else {
          const V x = V::load(tanh + members[c] * workspace.stride + k), slope = grad_e * (V(1) - x * x);
          add(of.grad_u + memory, v * slope, some);
          to_q = to_q + slope;
          to_v = to_v + grad_e * x;
        }
      };
      V to_q(0), to_v(0), more_q(0), more_v(0);
      int64_t c = 0;
      for (; c + 2 <= count; c += 2) {
        pair(c, to_q, to_v);
        pair(c + 1, more_q, more_v);
      }
      if (c < count) pair(c, to_q, to_v);
      ((to_q + more_q) * v).store(of.grad_q + at + k, some);
      add(workspace.grad_v + k, to_v + more_v, V::all);
    }
  }
  for (int64_t k = first; k < last; k += V::width) add(of.grad_v + k, V::load(workspace.grad_v + k), last - k);
}

template <class T>
void zero_rows(T* x, int64_t rows, int64_t n, ThreadContext me) {
  const auto [first, last] = me.share(rows);
  if (last > first) std::memset(x + first * n, 0, sizeof(T) * (last - first) * n);
}

template <class T>
void gather_backward(const GatherBackward<T>& problem, Range samples, ThreadContext me) {
  const auto workspace = lay_out<GatherBackwardWorkspace<T>>(problem, me);
  const auto weigh = problem.dot ? weigh_pairs<true, T> : weigh_pairs<false, T>;
  const auto add_up = problem.dot ? add_up_pairs<true, T> : add_up_pairs<false, T>;
  const GatherSizes& sizes = problem.sizes;
  const int64_t n = sizes.hidden, lines = (n + 15) / 16;
  const int64_t from = lines * me.rank / me.size * 16, to = smaller(n, lines * (me.rank + 1) / me.size * 16);
  for (int64_t b = samples.begin; b < samples.end; ++b) {
    const GatherSample<T> of(problem, b);
    zero_rows(of.grad_u, sizes.memories, n, me);
    zero_rows(of.grad_h, sizes.memories, n, me);
    zero_rows(of.grad_v, 1, n, me);
    me.barrier();
    for (int64_t t = 0; t < sizes.steps; t += workspace.rows) {
      const int64_t rows = smaller(workspace.rows, sizes.steps - t), pairs = rows * sizes.slots;
      const auto [first, last] = me.share(pairs);
      weigh(of, sizes, workspace, t, first, last);
      me.barrier();
      add_up(of, sizes, workspace, t, rows, from, to);
      me.barrier();
    }
  }
}

}  // namespace
}  // namespace rnnkern
