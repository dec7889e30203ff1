// Reads what is skew-symmetric, and says from its 2-norm which scheme serves and how often its result is to be squared.
// Included by cpu_kernels.h, once per SIMD level.
#pragma once

namespace rnnkern {
namespace {

struct Share {
  int64_t begin, end;
};

// A member's part of so many vectors of rows.
template <class T>
Share rows_of(int64_t n, Member me) {
  const int64_t blocks = (n + Vec<T>::width - 1) / Vec<T>::width;
  return {blocks * me.rank / me.size * Vec<T>::width, smaller(blocks * (me.rank + 1) / me.size * Vec<T>::width, n)};
}

// What a matrix has over its diagonal, given what it has below: -1 for a skew-symmetric one, 1 for a symmetric one, 0
// for zeros. On the diagonal a symmetric one keeps what it has, others have zeros. Of the terms nothing above is read.
template <int Sign, class T>
void from_below(const Sum<T>& below, int64_t n, T* to, Member me) {
  using V = Vec<T>;
  constexpr int64_t w = V::width;
  V v[w];
  const auto [first, last] = rows_of<T>(n, me);
  for (int64_t i = first; i < last; i += w) {
    const int64_t rows = smaller(w, n - i);
    for (int64_t j = 0; j < n; j += w) {
      const int64_t columns = smaller(w, n - j);
      T* const out = to + i * n + j;
      if (j < i && Sign > 0) {
        continue;
      } else if (j < i) {
        block(below, n, i, j, v);
      } else if (Sign == 0 && j > i) {
        for (int64_t r = 0; r < w; ++r) v[r] = V(0);
      } else if (j > i) {
        block(below, n, j, i, v);
        transpose(v);
        if (Sign < 0) {
          for (int64_t r = 0; r < w; ++r) v[r] = V(0) - v[r];
        }
      } else {
        T d[w * w];
        block(below, n, i, j, v);
        for (int64_t r = 0; r < w; ++r) v[r].store(d + r * w);
        for (int64_t r = 0; r < rows; ++r)
          for (int64_t c = 0; c < columns; ++c)
            out[r * n + c] = c < r ? d[r * w + c] : c > r ? T(Sign) * d[c * w + r] : Sign > 0 ? d[r * w + c] : T(0);
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) v[r].store(out + r * n, columns);
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

  bool operator==(const Plan& other) const { return scheme == other.scheme && squarings == other.squarings; }
  void keep(int64_t* to) const {
    to[0] = scheme - schemes<T>;
    to[1] = squarings;
  }
  // Coefficients are those of S / 2^squarings; what is multiplied first is S itself.
  T factor(double coefficient, int place) const {
    return T(place < 2 ? std::ldexp(coefficient, -(place + 1) * squarings) : coefficient);
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
