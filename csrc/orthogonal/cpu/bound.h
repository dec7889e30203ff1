// Bounds the 2-norm of a skew-symmetric S from both sides, to choose a scheme. The eigenvalues of S are pairs +-i
// sigma, those of H = -iS are +-sigma. With P = S^2, T_4(H / c) = 8 P^2 / c^4 + 8 P / c^2 + I, and T_2d = 2 T_d^2 - I.
// No other family has to choose by a norm. Included once per SIMD level.
#pragma once

#include "orthogonal/cpu/plan.h"

namespace rnnkern {
namespace {

// to[j] = the sum of f(i, X(i, j)) over i, for this thread's columns.
template <class T, class F>
RNNKERN_INLINE void sum_rows(const T* X, int64_t n, T* to, ThreadContext me, F f) {
  using V = Vec<T>;
  const auto [first, last] = rows_of<T>(n, me);
  for (int64_t j = first; j < last; j += V::width) {
    V sum[4];
    for (V& part : sum) part = V(0);
    // Lanes beyond the last column read the next row; they are not stored.
    const auto x = [&](int64_t i) { return V::load(X + i * n + j, (n - i) * n - j); };
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) sum[k] = sum[k] + f(i + k, x(i + k));
    }
    for (; i < n; ++i) sum[0] = sum[0] + f(i, x(i));
    ((sum[0] + sum[1]) + (sum[2] + sum[3])).store(to + j, n - j);
  }
}

// The Frobenius norm of X over sqrt(2): bounds the 2-norm if every eigenvalue is double. `workspace` has N elements.
template <class T>
double paired_norm(const T* X, int64_t n, T* workspace, ThreadContext me) {
  sum_rows(X, n, workspace, me, [](int64_t, Vec<T> x) { return x * x; });
  me.barrier();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(workspace[i]);
  me.barrier();
  return std::sqrt(sum / 2);
}

// A lower and an upper bound of the 2-norm; `most` is NaN if S contains NaN.
struct Bounds {
  double least, most;

  template <class T>
  Plan<T> plan() const {
    return Plan<T>(most * (1 + rounding));
  }
  template <class T>
  bool in_doubt() const {
    return std::isfinite(most) && !(plan<T>() == Plan<T>(least));
  }
  void at_least(double norm) {
    if (norm > least) least = norm;
  }
  // An upper bound from an upper bound x of |T_d(H / c)|, d = 2^doublings: sigma <= c cosh(acosh(x) / d), where cosh(y
  // / 2) = sqrt((1 + cosh(y)) / 2). If x overflowed to NaN, nothing changes.
  void by_chebyshev(double c, double x, int doublings) {
    if (x < 1) x = 1;
    for (int k = 0; k < doublings; ++k) x = std::sqrt((1 + x) / 2);
    if (c * x < most) most = c * x;
  }
};

// Bounds from P alone: sigma^2 is at most the 1-norm of P, and at most paired_norm(P), which gives a sigma at most (N /
// 2)^(1/4) times too large. `workspace` has N elements.
template <class T>
Bounds bounds(const T* P, int64_t n, T* workspace, ThreadContext me) {
  sum_rows(P, n, workspace, me, [](int64_t, Vec<T> x) { return abs(x); });
  me.barrier();
  double one = 0;
  for (int64_t i = 0; i < n; ++i)
    if (!(double(workspace[i]) <= one)) one = double(workspace[i]);
  me.barrier();
  // The first scheme suffices; and squares of numbers this small could underflow.
  if (!(std::sqrt(one) > schemes<T>->limit)) return {0, std::sqrt(one)};
  const double paired = paired_norm(P, n, workspace, me);
  return {std::sqrt(paired / std::sqrt(double(n / 2))), std::sqrt(std::fmin(one, paired))};
}

// A lower bound of the 2-norm, by the power method on P. `workspace` has 2 N elements.
template <class T>
double power_method(const T* P, int64_t n, T* workspace, ThreadContext me) {
  T *v = workspace, *w = workspace + n;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t mixed = (uint32_t(i) + 1) * 2654435761u;
    if (me.rank == 0) v[i] = T(int32_t(mixed ^ (mixed >> 15))) / T(INT32_MAX);
  }
  me.barrier();
  double found = 0;
  for (int step = 0; step < power_steps; ++step) {
    sum_rows(P, n, w, me, [v](int64_t i, Vec<T> x) { return Vec<T>(v[i]) * x; });
    me.barrier();
    double before = 0, after = 0;
    for (int64_t i = 0; i < n; ++i) {
      before += double(v[i]) * double(v[i]);
      after += double(w[i]) * double(w[i]);
    }
    me.barrier();
    if (!(after > 0)) break;
    found = std::sqrt(std::sqrt(after / before));
    const Range mine = rows_of<T>(n, me);
    const T factor = T(1 / std::sqrt(after));
    for (int64_t i = mine.begin; i < mine.end; ++i) w[i] *= factor;
    std::swap(v, w);
    me.barrier();
  }
  return found;
}

// The sums of sigma^2, sigma^4, sigma^6, sigma^8 over pairs, from P and P^2, given as a multiple of X + X^T.
struct Moments {
  double of[5];
};

template <class T>
Moments moments(const T* P, const Sum<T>& square, int64_t n, T* workspace, ThreadContext me) {
  using V = Vec<T>;
  constexpr int64_t w = V::width;
  const auto [first, last] = lower_rows_of<T>(n, me);
  V v[w];
  for (int64_t i = first; i < last; i += w) {
    V sums[3] = {V(0), V(0), V(0)};
    for (int64_t j = 0; j <= i; j += w) {
      if (j == i) {
        for (V& sum : sums) sum = sum + sum;  // blocks below the diagonal count twice
      }
      block(square, n, i, j, v);
      for (int64_t r = 0; r < smaller(w, n - i); ++r) {
        const V p = V::load(P + (i + r) * n + j, n - j);
        sums[0] = sums[0] + p * p;
        sums[1] = sums[1] + p * v[r];
        sums[2] = sums[2] + v[r] * v[r];
      }
    }
    for (int k = 0; k < 3; ++k) workspace[3 * (i / w) + k] = horizontal_sum(sums[k]);
  }
  me.barrier();
  Moments found{{double(n) / 2, 0, 0, 0, 0}};
  for (int64_t i = 0; i < n; ++i) found.of[1] -= double(P[i * n + i]) / 2;
  for (int64_t i = 0; i < (n + w - 1) / w; ++i)
    for (int k = 0; k < 3; ++k) found.of[k + 2] += (k == 1 ? -0.5 : 0.5) * double(workspace[3 * i + k]);
  me.barrier();
  return found;
}

// Number of values of c that are tried for T_4, as multiples of the lower bound.
constexpr int intervals = 13;
constexpr double narrowest = 0.5, widest = 1.1;

// Tightens the bounds if `bound` does not decide the plan. `square` is P^2. `to` and `other` (N x N) hold polynomials
// if P and P^2 do not decide; each doubling then takes a product of symmetric matrices, of which only half is computed.
// Returns whether they were written. `workspace` has 3 N elements.
template <class T>
bool closer(Bounds& bound, const Factors<T>& factors, const T* P, const Sum<T>& square, T* to, T* other, T* workspace,
            ThreadContext me) {
  const int64_t n = factors.n;
  const Moments m = moments(P, square, n, workspace, me);
  bound.at_least(std::sqrt(m.of[4] / m.of[3]));
  // Any c gives a bound; the lowest is found around an interval that contains nearly all eigenvalues.
  const double inner = bound.least;
  for (int k = 0; k < intervals; ++k) {
    const double c = inner * (narrowest + (widest - narrowest) * k / (intervals - 1)), by = 1 / (c * c);
    const double squares =
        (((64 * by * m.of[4] - 128 * m.of[3]) * by + 80 * m.of[2]) * by - 16 * m.of[1]) * by + m.of[0];
    bound.by_chebyshev(c, squares < 0 ? 0 : std::sqrt(squares), 2);
  }
  if (!bound.in_doubt<T>()) return false;
  bound.at_least(power_method(P, n, workspace, me));
  if (!bound.in_doubt<T>()) return false;
  const double c = inside * bound.least;
  Sum<T> chebyshev;
  for (int k = 0; k < square.count; ++k)
    chebyshev.add(square.terms[k].x, T(8 / (c * c * c * c) * square.terms[k].factor), square.terms[k].transposed);
  chebyshev.add(P, T(8 / (c * c)));
  chebyshev.identity = T(1);
  assign(chebyshev, n, to, me);
  me.barrier();
  for (int doubling = 2; doubling <= doublings && bound.in_doubt<T>(); ++doubling) {
    Output<T> twice{other, T(2)};
    twice.rest.identity = T(-1);
    product<T, true>(factors, Sum<T>(to), Sum<T>(to), &twice, 1, me);
    from_below<1>(Sum<T>(other), n, other, me);
    me.barrier();
    bound.by_chebyshev(c, paired_norm(other, n, workspace, me), doubling + 1);
    std::swap(to, other);
  }
  return true;
}

}  // namespace
}  // namespace rnnkern
