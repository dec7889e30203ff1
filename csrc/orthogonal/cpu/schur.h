// V = P Theta P^T with Theta = Lambda + T. Both directions are here, because each is a few products. Included once per
// SIMD level.
#pragma once

#include "orthogonal/cpu/plan.h"

namespace rnnkern {
namespace {

// Rows 2 k and 2 k + 1 have the block gamma_k ((cos, -sin), (sin, cos)); the last row of an odd N has gamma_k.
template <class T>
void make_theta(const T* lower, const T* theta, const T* gamma, int64_t n, T* Theta, ThreadContext me) {
  const auto [first, last] = rows_of<T>(n, me);
  for (int64_t i = first; i < last; ++i) {
    T* const row = Theta + i * n;
    const int64_t pair = i / 2;
    std::memcpy(row, lower + i * n, sizeof(T) * i);
    std::memset(row + i, 0, sizeof(T) * (n - i));
    if (pair == n / 2) {
      row[i] = gamma[pair];
      continue;
    }
    row[i] = gamma[pair] * std::cos(theta[pair]);
    const T beside = gamma[pair] * std::sin(theta[pair]);
    if (i % 2)
      row[i - 1] += beside;
    else
      row[i + 1] = -beside;
  }
}

template <class T>
struct SchurForwardWorkspace {
  T *Theta, *half;
  Factors<T> factors;

  SchurForwardWorkspace(const SchurForward<T>& problem, Workspace<T>& workspace, ThreadContext me)
      : Theta(workspace.alloc(problem.size * problem.size)),
        half(problem.half ? nullptr : workspace.alloc(problem.size * problem.size)),
        factors(problem.size, workspace, me.size) {}
};

template <class T>
void schur_forward(const SchurForward<T>& problem, Range matrices, ThreadContext me) {
  const auto workspace = lay_out<SchurForwardWorkspace<T>>(problem, me);
  const int64_t n = problem.size, elements = n * n;
  for (int64_t m = matrices.begin; m < matrices.end; ++m) {
    const T* const P = problem.P + m * elements;
    const Output<T> half{problem.half ? problem.half + m * elements : workspace.half},
        whole{problem.result + m * elements};
    make_theta(problem.lower + m * elements, problem.theta + m * (n / 2), problem.gamma + m * ((n + 1) / 2), n,
               workspace.Theta, me);
    me.barrier();
    product<T>(workspace.factors, Sum<T>(P), Sum<T>(workspace.Theta), &half, 1, me);
    product<T>(workspace.factors, Sum<T>(half.to), Sum<T>(P, true), &whole, 1, me);
  }
}

template <class T>
struct SchurBackwardWorkspace {
  T *Theta, *half_bar;
  Factors<T> factors;

  SchurBackwardWorkspace(const SchurBackward<T>& problem, Workspace<T>& workspace, ThreadContext me)
      : Theta(workspace.alloc(problem.size * problem.size)),
        half_bar(workspace.alloc(problem.size * problem.size)),
        factors(problem.size, workspace, me.size) {}
};

template <class T>
void schur_backward(const SchurBackward<T>& problem, Range matrices, ThreadContext me) {
  const auto workspace = lay_out<SchurBackwardWorkspace<T>>(problem, me);
  const int64_t n = problem.size, elements = n * n;
  for (int64_t m = matrices.begin; m < matrices.end; ++m) {
    const T *const P = problem.P + m * elements, *const grad = problem.grad + m * elements;
    const T *const theta = problem.theta + m * (n / 2), *const gamma = problem.gamma + m * ((n + 1) / 2);
    T* const Theta_bar = problem.grad_lower + m * elements;
    const Output<T> half_bar{workspace.half_bar}, first{problem.grad_P + m * elements}, of_Theta{Theta_bar};
    Output<T> second = first;
    second.rest.add(first.to, T(1));
    make_theta(problem.lower + m * elements, theta, gamma, n, workspace.Theta, me);
    me.barrier();
    product<T>(workspace.factors, Sum<T>(grad), Sum<T>(P), &half_bar, 1, me);
    product<T>(workspace.factors, Sum<T>(grad, true), Sum<T>(problem.half + m * elements), &first, 1, me);
    product<T>(workspace.factors, Sum<T>(workspace.half_bar), Sum<T>(workspace.Theta, true), &second, 1, me);
    product<T>(workspace.factors, Sum<T>(P, true), Sum<T>(workspace.half_bar), &of_Theta, 1, me);
    for (int64_t pair = me.rank; pair < n / 2; pair += me.size) {
      const T *const upper = Theta_bar + 2 * pair * (n + 1), *const below = upper + n;
      const T along = upper[0] + below[1], across = below[0] - upper[1];
      const T c = std::cos(theta[pair]), s = std::sin(theta[pair]);
      problem.grad_theta[m * (n / 2) + pair] = gamma[pair] * (c * across - s * along);
      problem.grad_gamma[m * ((n + 1) / 2) + pair] = c * along + s * across;
    }
    if (n % 2 && me.rank == 0) problem.grad_gamma[(m + 1) * ((n + 1) / 2) - 1] = Theta_bar[elements - 1];
    me.barrier();
    const auto [begin, end] = rows_of<T>(n, me);
    for (int64_t i = begin; i < end; ++i) std::memset(Theta_bar + i * (n + 1), 0, sizeof(T) * (n - i));
    me.barrier();
  }
}

}  // namespace
}  // namespace rnnkern
