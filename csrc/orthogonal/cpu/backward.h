// The backward of skew_exp: from the last squaring to the first product. Included once per SIMD level.
#pragma once

#include "orthogonal/cpu/forward.h"

namespace rnnkern {
namespace {

template <class T>
struct BackwardWorkspace {
  T *S, *chain;
  T* bars[most_products];
  Factors<T> factors;
  T* lanes;

  BackwardWorkspace(const SkewBackward<T>& problem, Workspace<T>& workspace, ThreadContext me)
      : S(workspace.alloc(problem.size * problem.size)),
        chain(problem.squarings ? workspace.alloc((problem.squarings + 1) * problem.size * problem.size) : nullptr),
        factors(problem.size, workspace, me.size),
        lanes(in_lanes<T>(problem.size)
                  ? workspace.alloc((LaneScheme<T>::parts + most_products + 2 + problem.squarings) *
                                    lane_elements<T>(problem.size))
                  : nullptr) {
    for (int k = 0; k <= kept_products<T>; ++k) bars[k] = workspace.alloc(problem.size * problem.size);
  }
};

// The gradient before the squarings: for E' = 2 E + E^2 it is G X^T + X^T G with X = I + E. The chain of E is
// recomputed; gradients overwrite matrices that are no longer needed.
template <class T>
const T* unsquare(const Plan<T>& plan, const T* const* basis, const T* grad, const BackwardWorkspace<T>& workspace,
                  ThreadContext me) {
  const int64_t elements = workspace.factors.n * workspace.factors.n;
  const int last = plan.scheme->products;
  Output<T> output{workspace.chain};
  output.rest = plan.added(last, basis);
  product<T>(workspace.factors, plan.left(last, basis), plan.right(last, basis), &output, 1, me);
  for (int k = 1; k < plan.squarings; ++k)
    square(workspace.factors, workspace.chain + (k - 1) * elements, workspace.chain + k * elements, T(0), me);
  for (int k = plan.squarings - 1; k >= 0; --k) {
    T* const to = workspace.chain + (k + 1) * elements;
    Sum<T> X(workspace.chain + k * elements, true);
    X.identity = T(1);
    Output<T> half{workspace.bars[0]}, whole{to};
    product<T>(workspace.factors, Sum<T>(grad), X, &half, 1, me);
    whole.rest.add(workspace.bars[0], T(1));
    product<T>(workspace.factors, X, Sum<T>(grad), &whole, 1, me);
    grad = to;
  }
  return grad;
}

// Adds the gradient of a factor to those of its terms.
template <class T>
struct Into {
  Output<T> outputs[most_products];
  int places[most_products], count = 0;

  Into(const Plan<T>& plan, const double (&factor)[most_products], int product, T* const* bars, bool* begun) {
    for (int place = 0; place < product; ++place) {
      if (factor[place] == 0) continue;
      Output<T>& output = outputs[count++];
      output.to = bars[place];
      output.factor = plan.factor(factor[place], place);
      if (begun[place]) output.rest.add(bars[place], T(1));
      places[count - 1] = place;
      begun[place] = true;
    }
  }
  // Adds that of `added` too; its terms must be terms of the factor.
  void add(const Plan<T>& plan, const double (&added)[most_products], const T* grad) {
    for (int k = 0; k < count; ++k) outputs[k].rest.add(grad, plan.factor(added[places[k]], places[k]));
  }
};

template <class T>
void backward(const SkewBackward<T>& problem, Range matrices, ThreadContext me) {
  const auto workspace = lay_out<BackwardWorkspace<T>>(problem, me);
  const int64_t n = problem.size, elements = n * n;
  if (workspace.lanes) return lanes_backward(problem, matrices, workspace.lanes);
  for (int64_t m = matrices.begin; m < matrices.end; ++m) {
    const T* const kept = problem.kept + m * kept_products<T> * elements;
    const T* const basis[most_products] = {workspace.S, kept, kept + elements, kept + 2 * elements};
    const Plan<T> plan(problem.plan + m * plan_size);
    from_below<-1>(Sum<T>(problem.A + m * elements), n, workspace.S, me);
    me.barrier();
    const T* grad = problem.grad + m * elements;
    if (plan.squarings) grad = unsquare(plan, basis, grad, workspace, me);
    bool begun[most_products] = {};
    for (int k = plan.scheme->products; k >= 2; --k) {
      const SkewProduct& step = plan.scheme->product[k - 1];
      const T* const given = k == plan.scheme->products ? grad : workspace.bars[k];
      Into<T> right(plan, step.right, k, workspace.bars, begun);
      right.add(plan, step.added, given);
      product<T>(workspace.factors, plan.left(k, basis).transpose(), Sum<T>(given), right.outputs, right.count, me);
      const Into<T> left(plan, step.left, k, workspace.bars, begun);
      product<T>(workspace.factors, Sum<T>(given), plan.right(k, basis).transpose(), left.outputs, left.count, me);
    }
    // P = S S. Of its gradient's contribution P_bar S^T + S^T P_bar only the skew part is needed, half of -(D - D^T)
    // with D = Z S and Z = P_bar + P_bar^T. The rest of S's gradient is added before the skew part is taken.
    Sum<T> Z(workspace.bars[1]);
    Z.add(workspace.bars[1], T(1), true);
    Output<T> W{workspace.bars[0], T(-1)};
    W.rest.add(workspace.bars[0], T(1));
    product<T>(workspace.factors, Z, Sum<T>(workspace.S), &W, 1, me);
    Sum<T> skew(workspace.bars[0]);
    skew.add(workspace.bars[0], T(-1), true);
    from_below<0>(skew, n, problem.grad_A + m * elements, me);
    me.barrier();
  }
}

}  // namespace
}  // namespace rnnkern
