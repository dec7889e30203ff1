// Bounds the 2-norm of a skew-symmetric S from both sides, and chooses by that which scheme serves. The eigenvalues of
// S come in pairs +-i sigma; those of H = -iS are +-sigma, and T_2(H / c) = -2 P / c^2 - I with P = S^2, T_2d = 2 T_d^2
// - I. Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

template <class T>
RNNKERN_INLINE double total(Vec<T> x) {
  double sum = 0;
  for (int k = 0; k < Vec<T>::width; ++k) sum += double(x.v[k]);
  return sum;
}

// w = P v, a member's rows of it; sums[i] = sum of |P(i, j)|.
template <class T>
void multiply(const T* P, int64_t n, const T* v, T* w, T* sums, Member me) {
  using V = Vec<T>;
  const auto [first, last] = rows_of<T>(n, me);
  for (int64_t i = first; i < last; ++i) {
    V dot[4], size(0);
    for (V& part : dot) part = V(0);
    int64_t j = 0;
    for (; j + 4 * V::width <= n; j += 4 * V::width) {
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k) {
        const V x = V::load(P + i * n + j + k * V::width);
        dot[k] = dot[k] + x * V::load(v + j + k * V::width);
        if (sums) size = size + abs(x);
      }
    }
    for (; j < n; j += V::width) {
      const V x = V::load(P + i * n + j, n - j);
      dot[0] = dot[0] + x * V::load(v + j, n - j);
      if (sums) size = size + abs(x);
    }
    w[i] = T(total((dot[0] + dot[1]) + (dot[2] + dot[3])));
    if (sums) sums[i] = T(total(size));
  }
}

// The Frobenius norm of X over the root of 2: what has each eigenvalue twice has none that is larger. `room` is N.
template <class T>
double paired_norm(const T* X, int64_t n, T* room, Member me) {
  using V = Vec<T>;
  const auto [first, last] = rows_of<T>(n, me);
  for (int64_t i = first; i < last; ++i) {
    V squares(0);
    for (int64_t j = 0; j < n; j += V::width) {
      const V x = V::load(X + i * n + j, n - j);
      squares = squares + x * x;
    }
    room[i] = T(total(squares));
  }
  me.meet();
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double(room[i]);
  me.meet();
  return std::sqrt(sum / 2);
}

// What the 2-norm is no less and no more than; `most` is NaN where S has one.
struct Bounds {
  double least, most;
};

// From P: at most the root of its 1-norm, and that of its Frobenius norm over the root of 2, which is at most
// (N / 2)^(1/4) times too large; at least what the power method finds. `room` is 3 N elements.
template <class T>
Bounds bounds(const T* P, int64_t n, T* room, Member me) {
  T *v = room, *w = room + n, *const sums = room + 2 * n;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t mixed = (uint32_t(i) + 1) * 2654435761u;
    const T value = T(int32_t(mixed ^ (mixed >> 15))) / T(INT32_MAX);
    if (me.rank == 0) v[i] = value;
  }
  me.meet();
  double most = 0, found = 0;
  for (int step = 0; step < power_steps; ++step) {
    multiply(P, n, v, w, step == 0 ? sums : nullptr, me);
    me.meet();
    double before = 0, after = 0;
    for (int64_t i = 0; i < n; ++i) {
      before += double(v[i]) * double(v[i]);
      after += double(w[i]) * double(w[i]);
      if (step == 0 && !(double(sums[i]) <= most)) most = double(sums[i]);
    }
    me.meet();
    // Nothing is left to find out; and squares of what is as small would be lost.
    if (step == 0 && !(std::sqrt(most) > schemes<T>->limit)) return {0, std::sqrt(most)};
    if (!(after > 0)) break;
    found = std::sqrt(std::sqrt(after / before));
    const Share mine = rows_of<T>(n, me);
    const T factor = T(1 / std::sqrt(after));
    for (int64_t i = mine.begin; i < mine.end; ++i) w[i] *= factor;
    std::swap(v, w);
    me.meet();
  }
  const double paired = paired_norm(P, n, sums, me);
  return {std::fmax(found, std::sqrt(paired / std::sqrt(double(n / 2)))), std::sqrt(std::fmin(most, paired))};
}

// The shortest scheme that a bound of the norm allows. Where the bounds leave a doubt, sigma <= c cosh(acosh(x) / d)
// for any c, with x the paired norm of T_d(H / c), or 1 where that is less: for each doubling a product of symmetric
// matrices, of which half is made. S is not needed, P is kept; `to` and `other` are N x N.
template <class T>
Plan<T> plan_of(const Factors<T>& factors, const T* P, T* to, T* other, T* room, Member me) {
  const int64_t n = factors.n;
  Bounds bound = bounds(P, n, room, me);
  const double c = inside * bound.least;
  Sum<T> chebyshev;
  chebyshev.add(P, T(-2 / (c * c)));
  chebyshev.identity = T(-1);
  for (int doubling = 1; doubling <= doublings; ++doubling) {
    const double with_rounding = bound.most * (1 + rounding);
    if (Plan<T>(with_rounding) == Plan<T>(bound.least) || !std::isfinite(bound.most)) break;
    Output<T> twice{to, T(2)};
    twice.rest.identity = T(-1);
    product<T, true>(factors, chebyshev, chebyshev, &twice, 1, me);
    from_below<1>(Sum<T>(to), n, to, me);
    me.meet();
    const double x = paired_norm(to, n, room, me), degree = std::ldexp(2.0, doubling);
    const double found = c * std::cosh(std::acosh(x < 1 ? 1.0 : x) / degree);  // NaN if x is: too large for T
    if (found < bound.most) bound.most = found;
    chebyshev = Sum<T>(to);
    std::swap(to, other);
  }
  return Plan<T>(bound.most * (1 + rounding));
}

}  // namespace
}  // namespace rnnkern
