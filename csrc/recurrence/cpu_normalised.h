// The stages of a cell whose product is normalised. R h waits among what is saved until all of a row is there; then one
// member takes the row's norms and equations, whoever took part in the product. Included by cpu_kernels.h, once per
// SIMD level.
#pragma once

#include "common/room.h"
#include "recurrence/cpu_sequence.h"
#include "recurrence/cpu_vectors.h"

namespace rnnkern {
namespace {

// Such a cell's bias comes after the norm.
template <class T>
Matrix<T> multiplied(const CellNumbers& cell, Matrix<T> R) {
  if (cell.normalised) R.bias = nullptr;
  return R;
}

template <class T>
RNNKERN_INLINE Vec<T> first_lanes(Vec<T> x, int64_t lanes) {
  if (lanes >= Vec<T>::width) return x;
  Vec<T> y(T(0));
  for (int64_t k = 0; k < lanes; ++k) y.v[k] = x.v[k];
  return y;
}

// The mean of f(i, lanes) over n elements, by four sums that do not wait for one another.
template <class T, class F>
RNNKERN_INLINE T mean_of(int64_t n, F f) {
  using V = Vec<T>;
  V sums[4] = {V(0), V(0), V(0), V(0)};
  int64_t i = 0;
  for (; i + 4 * V::width <= n; i += 4 * V::width) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) sums[k] = sums[k] + f(i + k * V::width, V::all);
  }
  for_vectors<V>(i, n, [&](int64_t j, auto lanes) RNNKERN_INLINE_LAMBDA { sums[0] = sums[0] + f(j, lanes); });
  T lanes[V::width];
  ((sums[0] + sums[1]) + (sums[2] + sums[3])).store(lanes);
  for (int half = V::width / 2; half > 0; half /= 2)
    for (int k = 0; k < half; ++k) lanes[k] += lanes[k + half];
  return lanes[0] / T(n);
}

// (x - mean) / sqrt(variance + eps), of a row x of n elements.
template <class T>
struct Norm {
  using V = Vec<T>;
  static constexpr T eps = T(norm_eps);

  const T* x;
  int64_t n;
  V mean, rstd;

  Norm(const T* x, int64_t n) : x(x), n(n) {
    mean = V(mean_of<T>(n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA { return V::load(x + i, lanes); }));
    const T variance = mean_of<T>(n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA {
      const V d = first_lanes(V::load(x + i, lanes) - mean, lanes);
      return d * d;
    });
    rstd = V(T(1) / std::sqrt(variance + eps));
  }

  RNNKERN_INLINE V operator()(int64_t i, int64_t lanes) const { return (V::load(x + i, lanes) - mean) * rstd; }

  // take(i, lanes, dL/dx), from the gradient of what the norm gave. The row of it may be written over by what is taken.
  template <class Take>
  RNNKERN_INLINE void backward(const T* grad, Take take) const {
    const V level(mean_of<T>(n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA { return V::load(grad + i, lanes); }));
    const V along(mean_of<T>(
        n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA { return V::load(grad + i, lanes) * (*this)(i, lanes); }));
    for_vectors<V>(0, n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA {
      take(i, lanes, rstd * (V::load(grad + i, lanes) - level - (*this)(i, lanes) * along));
    });
  }
};

// norm * gain + bias; no bias where it is null.
template <class T>
RNNKERN_INLINE Vec<T> affine(const Norm<T>& norm, const T* gain, const T* bias, int64_t i, int64_t lanes) {
  const Vec<T> scaled = norm(i, lanes) * Vec<T>::load(gain + i, lanes);
  return bias ? scaled + Vec<T>::load(bias + i, lanes) : scaled;
}

// A member's rows of what norms give.
template <class T>
struct NormsRoom {
  T *r, *y, *cells;

  NormsRoom(const CellNumbers& cell, int64_t hidden, Room<T>& room, Member me)
      : r(cell.normalised ? room.take((cell.recurrent + 2) * hidden, me) : nullptr),
        y(r ? r + cell.recurrent * hidden : nullptr),
        cells(r ? y + hidden : nullptr) {}
};

// to (gates, H) = LN(x) gain + bias, over all of a row.
template <class T>
void affine_row(const Norm<T>& norm, const T* gain, const T* bias, T* to) {
  for_vectors<Vec<T>>(0, norm.n, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA {
    affine(norm, gain, bias, i, lanes).store(to + i, lanes);
  });
}

// What follows the product of a step, of one sequence: the norms and equations of its row.
template <class Cell, class T>
void normalised_row(const Cell& equations, const Weights<T>& weights, const NormsRoom<T>& room,
                    ForwardStrip<T>& strip) {
  const int64_t hidden = weights.hidden;
  const Norm<T> norm(strip.saved + equations.own_saved() * hidden, equations.recurrent * hidden);
  affine_row(norm, weights.params[0], weights.R.bias, room.r);
  strip.r = room.r, strip.r_gate = hidden, strip.lanes = strip.r_vector = Vec<T>::width;
  if (equations.states == 1) return equations.forward(strip);
  T* const next_c = strip.next[1];
  strip.next[1] = room.cells;  // the c that entered may be in its place
  equations.forward(strip);
  affine_row(Norm<T>(room.cells, hidden), weights.params[1], weights.params[2], room.y);
  strip.y = room.y;
  equations.output(strip);
  strip.next[1] = next_c;
  copy(next_c, room.cells, hidden);
}

// The norms of one row, backwards.
template <class T>
class NormsBackward {
  using V = Vec<T>;

 public:
  // Elements of a member's room.
  static int64_t room_size(const CellNumbers& cell, int64_t hidden) { return (2 * cell.recurrent + 4) * hidden; }

  // The row of what was saved, and of the gradients of params[0], and of params[1] and [2].
  NormsBackward(const CellNumbers& cell, const Weights<T>& weights, const T* saved, T* const* dparams, int64_t b,
                T* room)
      : weights_(weights),
        hidden_(weights.hidden),
        columns_(cell.recurrent * hidden_),
        norm_(saved + cell.own_saved() * hidden_, columns_),
        dgain_(dparams[0] + b * columns_),
        r_(room),
        dr_(r_ + columns_),
        y_(dr_ + columns_),
        dy_(y_ + hidden_),
        dc_(dy_ + hidden_),
        cells_(dc_ + hidden_) {
    if (cell.states == 1) return;
    dgain_c_ = dparams[1] + b * hidden_;
    dbias_c_ = dparams[2] + b * hidden_;
  }

  // Before the equations: r and y as they had them, and what comes to c by way of its norm; `cells` is the c that the
  // norm saw, or null where zoneout has put others in its place.
  template <class Cell>
  void before(const Cell& equations, const T* cells, BackwardStrip<T>& strip) {
    affine_row(norm_, weights_.params[0], weights_.R.bias, r_);
    strip.r = r_;
    strip.dr = dr_;
    if (equations.states == 1) return;
    if (!cells) {
      ForwardStrip<T> again;
      again.begin = 0, again.end = hidden_, again.hidden = hidden_;
      again.saved = const_cast<T*>(strip.saved);  // read alone
      for (int s = 0; s < equations.states; ++s) again.old[s] = strip.old[s];
      again.next[1] = cells_;
      equations.next_c(again);
      cells = cells_;
    }
    const Norm<T> norm_c(cells, hidden_);
    affine_row(norm_c, weights_.params[1], weights_.params[2], y_);
    strip.y = strip.next[1] = y_;
    strip.operand = dy_;
    equations.output_backward(strip);
    for_vectors<V>(0, hidden_, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      const V dy = V::load(dy_ + unit, lanes);
      add(dy * norm_c(unit, lanes), dgain_c_ + unit, lanes);
      add(dy, dbias_c_ + unit, lanes);
      (dy * V::load(weights_.params[1] + unit, lanes)).store(dc_ + unit, lanes);
    });
    norm_c.backward(dc_, [&](int64_t unit, auto lanes, V dc)
                             RNNKERN_INLINE_LAMBDA { add(dc, strip.grad[1] + unit, lanes); });
  }

  // After them: take(i, lanes, the gradient of R h).
  template <class Take>
  RNNKERN_INLINE void after(Take take) {
    for_vectors<V>(0, columns_, [&](int64_t i, auto lanes) RNNKERN_INLINE_LAMBDA {
      const V dr = V::load(dr_ + i, lanes);
      add(dr * norm_(i, lanes), dgain_ + i, lanes);
      (dr * V::load(weights_.params[0] + i, lanes)).store(dr_ + i, lanes);
    });
    norm_.backward(dr_, take);
  }

 private:
  RNNKERN_INLINE static void add(V x, T* sum, int64_t lanes) { (V::load(sum, lanes) + x).store(sum, lanes); }

  const Weights<T>& weights_;
  const int64_t hidden_, columns_;
  const Norm<T> norm_;
  T *const dgain_, *dgain_c_ = nullptr, *dbias_c_ = nullptr;
  T *const r_, *const dr_, *const y_, *const dy_, *const dc_, *const cells_;
};

}  // namespace
}  // namespace rnnkern
