// Reads what is skew-symmetric, bounds its 2-norm, and says from that which scheme serves and how often its result is
// to be squared. Included by cpu_kernels.h, once per SIMD level.
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

constexpr int power_steps = 6;
constexpr double margin = 1.05;  // over what so many steps find; they miss a few percent

// The 2-norm of S, from P = S^2: the smaller of a bound, the root of the 1-norm of P, and of what the power method
// finds, with a margin. NaN where S has one. `room` is 3 N elements.
template <class T>
double norm(const T* P, int64_t n, T* room, Member me) {
  T *v = room, *w = room + n, *const sums = room + 2 * n;
  for (int64_t i = 0; i < n; ++i) {
    const uint32_t mixed = (uint32_t(i) + 1) * 2654435761u;
    const T value = T(int32_t(mixed ^ (mixed >> 15))) / T(INT32_MAX);
    if (me.rank == 0) v[i] = value;
  }
  me.meet();
  double bound = 0, found = 0;
  for (int step = 0; step < power_steps; ++step) {
    multiply(P, n, v, w, step == 0 ? sums : nullptr, me);
    me.meet();
    double before = 0, after = 0;
    for (int64_t i = 0; i < n; ++i) {
      before += double(v[i]) * double(v[i]);
      after += double(w[i]) * double(w[i]);
      if (step == 0 && !(double(sums[i]) <= bound)) bound = double(sums[i]);
    }
    me.meet();
    if (!(bound > 0) || !(after > 0)) return std::sqrt(bound);
    found = std::sqrt(std::sqrt(after / before));
    const Share mine = rows_of<T>(n, me);
    const T factor = T(1 / std::sqrt(after));
    for (int64_t i = mine.begin; i < mine.end; ++i) w[i] *= factor;
    std::swap(v, w);
    me.meet();
  }
  const double with_margin = margin * found;
  return with_margin < std::sqrt(bound) ? with_margin : std::sqrt(bound);
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
