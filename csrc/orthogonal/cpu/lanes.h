// skew_exp of small matrices, one per lane of the vectors: their products need no packing and leave no lane idle. Every
// matrix takes the scheme of the highest degree, so that its bits do not depend on the matrices in the other lanes.
// Such a matrix of vectors has `side` rows and columns; those from n on are zero. A file of its own because only small
// matrices use it, in both directions. Included once per SIMD level.
#pragma once

#include "orthogonal/cpu/plan.h"

namespace rnnkern {
namespace {

constexpr int64_t lane_columns = 4, lane_rows = RNNKERN_VECTOR_BYTES == 64 ? 4 : 2;  // of a tile, in registers

inline int64_t side_of(int64_t n) { return (n + lane_columns - 1) / lane_columns * lane_columns; }

template <class T>
int64_t lane_elements(int64_t n) {
  return side_of(n) * side_of(n) * Vec<T>::width;
}

// to = a b, each factor possibly transposed.
template <bool FlipA = false, bool FlipB = false, class T>
void multiply(int64_t side, const T* a, const T* b, T* to) {
  using V = Vec<T>;
  constexpr int64_t w = V::width;
  for (int64_t i = 0; i < side; i += lane_rows) {
    for (int64_t j = 0; j < side; j += lane_columns) {
      V sum[lane_rows][lane_columns];
      for (auto& row : sum)
        for (V& one : row) one = V(0);
      for (int64_t k = 0; k < side; ++k) {
        V x[lane_columns];
#pragma GCC unroll 4
        for (int64_t c = 0; c < lane_columns; ++c)
          x[c] = V::load(b + (FlipB ? (j + c) * side + k : k * side + j + c) * w);
#pragma GCC unroll 4
        for (int64_t r = 0; r < lane_rows; ++r) {
          const V y = V::load(a + (FlipA ? k * side + i + r : (i + r) * side + k) * w);
#pragma GCC unroll 4
          for (int64_t c = 0; c < lane_columns; ++c) sum[r][c] = sum[r][c] + y * x[c];
        }
      }
      for (int64_t r = 0; r < lane_rows; ++r)
        for (int64_t c = 0; c < lane_columns; ++c) sum[r][c].store(to + ((i + r) * side + j + c) * w);
    }
  }
}

// Calls f(place of a vector) for each element of a matrix.
template <class T, class F>
RNNKERN_INLINE void each_vector(int64_t side, F f) {
  for (int64_t k = 0; k < side * side; ++k) f(k * Vec<T>::width);
}

template <class T>
void clear(int64_t side, T* to) {
  each_vector<T>(side, [&](int64_t at) RNNKERN_INLINE_LAMBDA { Vec<T>(0).store(to + at); });
}

// The matrices that are in the lanes, and the products of the scheme of the highest degree of each.
template <class T>
struct LaneScheme {
  using V = Vec<T>;
  static constexpr int64_t w = V::width;
  static constexpr const SkewScheme& longest = schemes<T>[scheme_count<T> - 1];

  int64_t n, side;
  T* basis[most_products + 1];  // S / 2^squarings and the products after it
  T* E;                         // the last of them, exp(S / 2^squarings) - I
  T *left, *right;
  int64_t squarings[w], most;

  // Parts of a workspace.
  static constexpr int64_t parts = most_products + 3;

  LaneScheme(int64_t n, T* workspace) : n(n), side(side_of(n)) {
    const int64_t elements = lane_elements<T>(n);
    for (int k = 0; k <= most_products; ++k) basis[k] = workspace + k * elements;
    E = basis[longest.products];
    left = workspace + (most_products + 1) * elements;
    right = left + elements;
  }

  // Loads as many matrices as there are lanes left.
  void load(const T* A, int64_t lanes) {
    clear(side, basis[0]);
    for (int64_t lane = 0; lane < lanes; ++lane, A += n * n) {
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < i; ++j) {
          basis[0][(i * side + j) * w + lane] = A[i * n + j];
          basis[0][(j * side + i) * w + lane] = -A[i * n + j];
        }
      }
    }
    multiply(side, basis[0], basis[0], basis[1]);
  }

  // From the norms: the square root of the 1-norm of P, and that of its Frobenius norm over sqrt(2), whose eigenvalues
  // are double.
  void choose() {
    T ones[w] = {}, sums[w], squares[w];
    V square(0);
    for (int64_t j = 0; j < side; ++j) {
      V sum(0);
      for (int64_t i = 0; i < side; ++i) {
        const V p = V::load(basis[1] + (i * side + j) * w);
        sum = sum + abs(p);
        square = square + p * p;
      }
      sum.store(sums);
      for (int64_t lane = 0; lane < w; ++lane)
        if (!(sums[lane] <= ones[lane])) ones[lane] = sums[lane];
    }
    square.store(squares);
    for (int64_t lane = 0; lane < w; ++lane) {
      const double norm = std::sqrt(std::fmin(double(ones[lane]), std::sqrt(double(squares[lane]) / 2)));
      squarings[lane] = Plan<T>(norm * (1 + rounding)).squarings;
    }
  }

  V halvings() const {
    T found[w];
    for (int64_t lane = 0; lane < w; ++lane) found[lane] = T(std::ldexp(1.0, -int(squarings[lane])));
    return V::load(found);
  }

  // A mask of the lanes whose matrix is squared another time after `times` times.
  typename V::RawBits squared_after(int64_t times) const {
    T found[w];
    for (int64_t lane = 0; lane < w; ++lane) found[lane] = T(squarings[lane] > times);
    return V::load(found) > V(0);
  }

  void combine(const double (&coefficients)[most_products], int places, double identity, T* to) const {
    each_vector<T>(side, [&](int64_t at) RNNKERN_INLINE_LAMBDA {
      V sum(0);
      for (int place = 0; place < places; ++place) sum = sum + V(coefficients[place]) * V::load(basis[place] + at);
      sum.store(to + at);
    });
    for (int64_t i = 0; i < side && identity != 0; ++i) {
      T* const at = to + (i * side + i) * w;
      (V::load(at) + V(identity)).store(at);
    }
  }

  // The products, with the numbers of squarings given.
  void run() {
    const V half = halvings();
    most = 0;
    for (int64_t lane = 0; lane < w; ++lane) most = larger(most, squarings[lane]);
    each_vector<T>(side, [&](int64_t at) RNNKERN_INLINE_LAMBDA {
      (half * V::load(basis[0] + at)).store(basis[0] + at);
      (half * half * V::load(basis[1] + at)).store(basis[1] + at);
    });
    for (int k = 2; k <= longest.products; ++k) {
      const SkewProduct& step = longest.product[k - 1];
      combine(step.left, k, 0, left);
      combine(step.right, k, step.identity, right);
      multiply(side, left, right, basis[k]);
      combine(step.added, k, 0, left);
      each_vector<T>(side, [&](int64_t at) RNNKERN_INLINE_LAMBDA {
        (V::load(basis[k] + at) + V::load(left + at)).store(basis[k] + at);
      });
    }
  }

  // to = 2 E + E^2; where a mask is given, only in its lanes.
  void square(const T* E, T* to, typename V::RawBits lanes) {
    multiply(side, E, E, left);
    each_vector<T>(side, [&](int64_t at) RNNKERN_INLINE_LAMBDA {
      const V e = V::load(E + at);
      select(lanes, V(2) * e + V::load(left + at), e).store(to + at);
    });
  }
};

template <class T>
void lanes_forward(const SkewForward<T>& problem, Range matrices, T* workspace) {
  constexpr int64_t w = Vec<T>::width;
  const int64_t n = problem.size;
  LaneScheme<T> scheme(n, workspace);
  T* const E = scheme.E;
  for (int64_t m = matrices.begin; m < matrices.end; m += w) {
    const int64_t lanes = smaller(w, matrices.end - m);
    scheme.load(problem.A + m * n * n, lanes);
    scheme.choose();
    scheme.run();
    for (int64_t k = 0; k < scheme.most; ++k) scheme.square(E, E, scheme.squared_after(k));
    for (int64_t lane = 0; lane < lanes; ++lane) {
      T* const to = problem.result + (m + lane) * n * n;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j)
          to[i * n + j] = E[(i * scheme.side + j) * w + lane] + T(i == j && !problem.minus_identity);
      if (problem.plan) {
        problem.plan[(m + lane) * plan_size] = scheme_count<T> - 1;
        problem.plan[(m + lane) * plan_size + 1] = scheme.squarings[lane];
      }
    }
  }
}

// The backward of the steps of a LaneScheme.
template <class T>
struct LaneGradients {
  using V = Vec<T>;

  LaneScheme<T>& scheme;
  int64_t side, elements;
  T *G, *bars[most_products];  // gradients: of the result, and of the basis
  T *product, *chain;          // chain: E after each squaring

  LaneGradients(LaneScheme<T>& scheme, T* workspace)
      : scheme(scheme), side(scheme.side), elements(lane_elements<T>(scheme.n)) {
    G = workspace + scheme.parts * elements;
    product = G + elements;
    for (int k = 0; k < most_products; ++k) bars[k] = G + (k + 2) * elements;
    chain = G + (most_products + 2) * elements;
  }

  // For E' = 2 E + E^2 the gradient is 2 G + G E^T + E^T G.
  void through_squarings() {
    const auto before = [&](int64_t k) { return k ? chain + (k - 1) * elements : scheme.E; };
    for (int64_t k = 0; k < scheme.most; ++k) scheme.square(before(k), chain + k * elements, scheme.squared_after(k));
    for (int64_t k = scheme.most - 1; k >= 0; --k) {
      multiply<false, true>(side, G, before(k), scheme.left);
      multiply<true, false>(side, before(k), G, scheme.right);
      const auto squared = scheme.squared_after(k);
      each_vector<T>(side, [&](int64_t at) RNNKERN_INLINE_LAMBDA {
        const V g = V::load(G + at), added = V::load(scheme.left + at) + V::load(scheme.right + at);
        select(squared, V(2) * g + added, g).store(G + at);
      });
    }
  }

  // Adds the gradient of a combination of the basis to those of its terms.
  void add(const double (&coefficients)[most_products], int places, const T* grad) {
    for (int place = 0; place < places; ++place) {
      if (coefficients[place] == 0) continue;
      each_vector<T>(side, [&](int64_t at) RNNKERN_INLINE_LAMBDA {
        (V::load(bars[place] + at) + V(coefficients[place]) * V::load(grad + at)).store(bars[place] + at);
      });
    }
  }

  void through_products() {
    for (T* const bar : bars) clear(side, bar);
    for (int k = scheme.longest.products; k >= 2; --k) {
      const SkewProduct& step = scheme.longest.product[k - 1];
      const T* const given = k == scheme.longest.products ? G : bars[k];
      scheme.combine(step.left, k, 0, scheme.left);
      scheme.combine(step.right, k, step.identity, scheme.right);
      multiply<false, true>(side, given, scheme.right, product);
      add(step.left, k, product);
      multiply<true, false>(side, scheme.left, given, product);
      add(step.right, k, product);
      add(step.added, k, given);
    }
    // P = S S has the gradient -(P_bar S + S P_bar).
    multiply(side, bars[1], scheme.basis[0], scheme.left);
    multiply(side, scheme.basis[0], bars[1], scheme.right);
    const V half = scheme.halvings();
    each_vector<T>(side, [&](int64_t at) RNNKERN_INLINE_LAMBDA {
      const V of_square = V::load(scheme.left + at) + V::load(scheme.right + at);
      (half * (V::load(bars[0] + at) - of_square)).store(bars[0] + at);
    });
  }
};

// Recomputes the products: a matrix takes less time than reading what the forward could have saved.
template <class T>
void lanes_backward(const SkewBackward<T>& problem, Range matrices, T* workspace) {
  constexpr int64_t w = Vec<T>::width;
  const int64_t n = problem.size;
  LaneScheme<T> scheme(n, workspace);
  LaneGradients<T> grads(scheme, workspace);
  const auto at = [&](int64_t i, int64_t j, int64_t lane) { return (i * scheme.side + j) * w + lane; };
  for (int64_t m = matrices.begin; m < matrices.end; m += w) {
    const int64_t lanes = smaller(w, matrices.end - m);
    scheme.load(problem.A + m * n * n, lanes);
    for (int64_t lane = 0; lane < w; ++lane)
      scheme.squarings[lane] = lane < lanes ? problem.plan[(m + lane) * plan_size + 1] : 0;
    scheme.run();
    clear(scheme.side, grads.G);
    for (int64_t lane = 0; lane < lanes; ++lane)
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) grads.G[at(i, j, lane)] = problem.grad[(m + lane) * n * n + i * n + j];
    grads.through_squarings();
    grads.through_products();
    const T* const bar = grads.bars[0];
    for (int64_t lane = 0; lane < lanes; ++lane) {
      T* const to = problem.grad_A + (m + lane) * n * n;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) to[i * n + j] = j < i ? bar[at(i, j, lane)] - bar[at(j, i, lane)] : T(0);
    }
  }
}

}  // namespace
}  // namespace rnnkern
