// Reads skew-symmetric matrices, and chooses from the 2-norm a scheme and the number of squarings of its result.
// Included once per SIMD level.
#pragma once

#include "orthogonal/cpu/product.h"

namespace rnnkern {
namespace {

// This thread's rows, in multiples of a vector's width.
template <class T>
Range rows_of(int64_t n, ThreadContext me) {
  const int64_t blocks = (n + Vec<T>::width - 1) / Vec<T>::width;
  return {blocks * me.rank / me.size * Vec<T>::width, smaller(blocks * (me.rank + 1) / me.size * Vec<T>::width, n)};
}

// This thread's rows of blocks on and below the diagonal. All threads get about the same area.
template <class T>
Range lower_rows_of(int64_t n, ThreadContext me) {
  const double blocks = double((n + Vec<T>::width - 1) / Vec<T>::width);
  const auto begin = [&](int rank) {
    return smaller(int64_t(blocks * std::sqrt(double(rank) / me.size) + 0.5) * Vec<T>::width, n);
  };
  return {begin(me.rank), begin(me.rank + 1)};
}

template <class T>
RNNKERN_INLINE void store(const Vec<T>* v, int64_t n, int64_t row, int64_t column, T* to) {
  for (int64_t r = 0; r < smaller(Vec<T>::width, n - row); ++r) v[r].store(to + (row + r) * n + column, n - column);
}

// Completes a matrix whose lower triangle is given: skew-symmetric (-1), symmetric (1), or with zeros above the
// diagonal (0). The diagonal is kept in a symmetric matrix, else zero. Elements above the diagonal are not read.
template <int Sign, class T>
void from_below(const Sum<T>& below, int64_t n, T* to, ThreadContext me) {
  using V = Vec<T>;
  using Lanes = typename V::RawBits;
  constexpr int w = V::width;
  V v[w], u[w];
  const Lanes lane = numbered<T>();
  const auto [first, last] = lower_rows_of<T>(n, me);
  for (int64_t i = first; i < last; i += w) {
    for (int64_t j = 0; j <= i; j += w) {
      block(below, n, i, j, v);
      for (int r = 0; r < w; ++r) u[r] = v[r];
      transpose(u);
      for (int r = 0; r < w; ++r) u[r] = V(Sign) * u[r];
      if (i == j) {
        for (int r = 0; r < w; ++r) {
          const V diagonal = Sign > 0 ? v[r] : V(0);
          v[r] = select(lane < Lanes{} + r, v[r], select(lane > Lanes{} + r, Sign ? u[r] : V(0), diagonal));
        }
      } else {
        if (Sign == 0) {
          for (int r = 0; r < w; ++r) u[r] = V(0);
        }
        store(u, n, j, i, to);
      }
      if (Sign <= 0 || i == j) store(v, n, i, j, to);
    }
  }
}

// to = sum, whose terms may include `to` itself, transposed or not.
template <class T>
void assign(const Sum<T>& sum, int64_t n, T* to, ThreadContext me) {
  constexpr int64_t w = Vec<T>::width;
  Vec<T> v[w], u[w];
  const auto [first, last] = lower_rows_of<T>(n, me);
  for (int64_t i = first; i < last; i += w) {
    for (int64_t j = 0; j <= i; j += w) {
      block(sum, n, i, j, v);
      block(sum, n, j, i, u);
      store(v, n, i, j, to);
      store(u, n, j, i, to);
    }
  }
}

template <class T>
struct Plan {
  const SkewScheme* scheme;
  int squarings;

  explicit Plan(const int64_t* kept) : scheme(schemes<T> + kept[0]), squarings(int(kept[1])) {}
  explicit Plan(double norm) : scheme(schemes<T>), squarings(0) {
    const SkewScheme* const longest = schemes<T> + scheme_count<T> - 1;
    while (scheme < longest && !(norm <= scheme->limit)) ++scheme;
    if (norm > scheme->limit && norm < std::numeric_limits<double>::infinity())
      squarings = int(std::ceil(std::log2(norm / scheme->limit)));
  }

  // A plan of degree 8, whose second product is a S^3 + b S^4 with nonzero a and b.
  static Plan of_degree_8(int squarings) {
    Plan plan(0.0);
    plan.scheme = schemes<T> + 1;
    plan.squarings = squarings;
    return plan;
  }

  bool operator==(const Plan& other) const { return scheme == other.scheme && squarings == other.squarings; }
  void keep(int64_t* to) const {
    to[0] = scheme - schemes<T>;
    to[1] = squarings;
  }
  // Coefficients are those of S / 2^squarings, but products start from S itself.
  T factor(double coefficient, int place) const {
    return T(place < 2 ? std::ldexp(coefficient, -(place + 1) * squarings) : coefficient);
  }
  // The coefficients of S^3 and S^4 in the second product.
  double cubed() const { return std::ldexp(scheme->product[1].right[0], -3 * squarings); }
  double fourth() const { return std::ldexp(scheme->product[1].right[1], -4 * squarings); }
  // The second product of this plan from X, that of another plan: the skew-symmetric part of X is its term in S^3, the
  // symmetric part its term in S^4.
  Sum<T> second_of(const Plan& other, const T* X) const {
    const double skew = cubed() / other.cubed(), symmetric = fourth() / other.fourth();
    Sum<T> found;
    found.add(X, T((symmetric + skew) / 2));
    found.add(X, T((symmetric - skew) / 2), true);
    return found;
  }
  Sum<T> sum(const double (&coefficients)[most_products], int product, const T* const* basis) const {
    Sum<T> found;
    for (int place = 0; place < product; ++place) found.add(basis[place], factor(coefficients[place], place));
    return found;
  }
  Sum<T> left(int product, const T* const* basis) const {
    return sum(scheme->product[product - 1].left, product, basis);
  }
  Sum<T> right(int product, const T* const* basis) const {
    Sum<T> found = sum(scheme->product[product - 1].right, product, basis);
    found.identity = T(scheme->product[product - 1].identity);
    return found;
  }
  Sum<T> added(int product, const T* const* basis) const {
    return sum(scheme->product[product - 1].added, product, basis);
  }
};

}  // namespace
}  // namespace rnnkern
