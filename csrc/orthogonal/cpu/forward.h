// skew_exp: the products of a scheme and the squarings after them. basis[0] is S, basis[k] the k-th product. Included
// once per SIMD level.
#pragma once

#include "orthogonal/cpu/bound.h"
#include "orthogonal/cpu/lanes.h"

namespace rnnkern {
namespace {

// to = X^2 - I for X = I + E. If S is small, so is E, and keeps its precision. Every squaring doubles the error so far,
// so sums are in double.
template <class T>
void square(const Factors<T>& factors, const T* E, T* to, T identity, ThreadContext me) {
  Output<T> output{to};
  output.rest.add(E, T(2));
  output.rest.identity = identity;
  product<double>(factors, Sum<T>(E), Sum<T>(E), &output, 1, me);
}

template <class T>
struct ForwardWorkspace {
  T *S, *kept, *vectors;
  Factors<T> factors;
  T* lanes;

  ForwardWorkspace(const SkewForward<T>& problem, Workspace<T>& workspace, ThreadContext me)
      : S(workspace.alloc(problem.size * problem.size)),
        kept(problem.kept ? nullptr : workspace.alloc(kept_products<T> * problem.size * problem.size)),
        vectors(workspace.alloc(3 * problem.size)),
        factors(problem.size, workspace, me.size),
        lanes(in_lanes<T>(problem.size) ? workspace.alloc(LaneScheme<T>::parts * lane_elements<T>(problem.size))
                                        : nullptr) {}
};

// The plan of a matrix. If P alone did not decide it, the second product of a guessed plan was made.
template <class T>
struct Choice {
  Plan<T> plan, guess;
  bool made;
};

// Chooses the plan of a matrix whose S and P are in the basis. The second product of a guessed plan gives the sums that
// decide it; it is later converted to that of the final plan.
template <class T>
Choice<T> choose(const ForwardWorkspace<T>& workspace, const Sum<T>& A, const T* const* basis, T* second, T* result,
                 ThreadContext me) {
  const int64_t n = workspace.factors.n;
  Bounds bound = bounds(basis[1], n, workspace.vectors, me);
  const bool made = bound.in_doubt<T>();
  const Plan<T> guess = Plan<T>::of_degree_8(Plan<T>(bound.least).squarings);
  if (made) {
    const Output<T> output{second};
    product<T>(workspace.factors, guess.left(2, basis), guess.right(2, basis), &output, 1, me);
    const T half = T(0.5 / guess.fourth());
    Sum<T> square;
    square.add(second, half);
    square.add(second, half, true);
    // `result` is not used yet, and S is restored afterwards.
    if (closer(bound, workspace.factors, basis[1], square, workspace.S, result, workspace.vectors, me)) {
      from_below<-1>(A, n, workspace.S, me);
      me.barrier();
    }
  }
  return {bound.plan<T>(), guess, made};
}

// The products of the chosen plan from the second on; the last one goes to E.
template <class T>
void multiply_basis(const ForwardWorkspace<T>& workspace, const Choice<T>& choice, const T* const* basis, T* kept, T* E,
                    T last_identity, ThreadContext me) {
  const Plan<T>& plan = choice.plan;
  const int64_t n = workspace.factors.n;
  for (int k = 2; k <= plan.scheme->products; ++k) {
    const bool last = k == plan.scheme->products;
    Output<T> output{last ? E : kept + (k - 1) * n * n};
    output.rest = plan.added(k, basis);
    if (last) output.rest.identity = last_identity;
    if (k > 2 || !choice.made) {
      product<T>(workspace.factors, plan.left(k, basis), plan.right(k, basis), &output, 1, me);
    } else if (last || !(plan == choice.guess)) {
      Sum<T> over = plan.second_of(choice.guess, basis[2]);
      for (int term = 0; term < output.rest.count; ++term)
        over.add(output.rest.terms[term].x, output.rest.terms[term].factor);
      over.identity = output.rest.identity;
      assign(over, n, output.to, me);
      me.barrier();
    }
  }
}

template <class T>
void forward(const SkewForward<T>& problem, Range matrices, ThreadContext me) {
  const auto workspace = lay_out<ForwardWorkspace<T>>(problem, me);
  const int64_t n = problem.size, elements = n * n;
  if (workspace.lanes) return lanes_forward(problem, matrices, workspace.lanes);
  const T identity = T(!problem.minus_identity);
  for (int64_t m = matrices.begin; m < matrices.end; ++m) {
    T* const kept = problem.kept ? problem.kept + m * kept_products<T> * elements : workspace.kept;
    T* const result = problem.result + m * elements;
    const T* const basis[most_products] = {workspace.S, kept, kept + elements, kept + 2 * elements};
    const Sum<T> A(problem.A + m * elements);
    from_below<-1>(A, n, workspace.S, me);
    me.barrier();
    const Output<T> first{kept};
    product<T, true>(workspace.factors, Sum<T>(workspace.S), Sum<T>(workspace.S), &first, 1, me);
    from_below<1>(Sum<T>(kept), n, kept, me);
    me.barrier();
    const Choice<T> choice = choose(workspace, A, basis, kept + elements, result, me);
    const int squarings = choice.plan.squarings;
    if (problem.plan && me.rank == 0) choice.plan.keep(problem.plan + m * plan_size);
    // The last product may overwrite S, of which it only reads the elements that it overwrites. The squarings alternate
    // between this buffer and the result, and end in the result.
    T *E = result, *next = workspace.S;
    if (squarings % 2) std::swap(E, next);
    multiply_basis(workspace, choice, basis, kept, E, squarings ? T(0) : identity, me);
    for (int k = 1; k <= squarings; ++k) {
      square(workspace.factors, E, next, k == squarings ? identity : T(0), me);
      std::swap(E, next);
    }
  }
}

}  // namespace
}  // namespace rnnkern
