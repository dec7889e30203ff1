// The stages of a cell whose product is normalised. R h waits among what is saved until all of a row is there; then one
// member takes the row's norms and equations, whoever took part in the product. Included by cpu_kernels.h, once per
// SIMD level.
#pragma once

namespace rnnkern {
namespace {

// Such a cell's bias comes after the norm.
template <class Cell, class T>
Matrix<T> multiplied(Matrix<T> R) {
  if (Cell::normalised) R.bias = nullptr;
  return R;
}

template <class T>
RNNKERN_INLINE Vec<T> first_lanes(Vec<T> x, int64_t lanes) {
  return lanes >= Vec<T>::width ? x : select(among_first<T>(lanes), x, Vec<T>(T(0)));
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

// What follows the product of a step: the norms and equations of a member's sequences up to row1, with `cells` as room
// for a row of c. The rest is as StepProducts::step has it.
template <class Cell, class T, class HBefore, class LoadU, class SavedRow, class OldC, class Put>
RNNKERN_INLINE void normalised_rows(const Weights<T>& weights, const Share& share, int64_t row1, T* cells,
                                    const HBefore& h_before, LoadU load_u, SavedRow saved_row, OldC old_c, Put put) {
  using V = Vec<T>;
  constexpr int gates = Cell::gates, own = Cell::saved - gates;
  const int64_t hidden = weights.hidden;
  for (int64_t b = share.copy0; b < smaller(share.copy1, row1); ++b) {
    T* const saved = saved_row(b);
    const Norm<T> norm(saved + own * hidden, gates * hidden);
    for_vectors<V>(0, hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      V u[gates], r[gates], old[Cell::states], next[Cell::states], save[Cell::saved];
      load_u(u, b, unit, lanes);
      load_gates(save + own, gates, saved + own * hidden, hidden, unit, lanes);
      for (int g = 0; g < gates; ++g) r[g] = affine(norm, weights.params[0], weights.R.bias, g * hidden + unit, lanes);
      old[0] = load(h_before(b) + unit, lanes);
      if constexpr (Cell::states > 1) old[1] = h_before.is_reset(b) ? V(0) : old_c(b, unit, lanes);
      Cell::forward(u, r, old, static_cast<const V*>(nullptr), next, save);
      if constexpr (Cell::states > 1) {
        store_gates(save, own, saved, hidden, unit, lanes);
        next[1].store(cells + unit, lanes);
      } else {
        put(b, unit, lanes, old, next, save);
      }
    });
    if constexpr (Cell::states > 1) {
      const Norm<T> norm_c(cells, hidden);
      for_vectors<V>(0, hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        V old[Cell::states], next[Cell::states], save[Cell::saved];
        load_gates(save, Cell::saved, saved, hidden, unit, lanes);
        old[0] = load(h_before(b) + unit, lanes);
        old[1] = h_before.is_reset(b) ? V(0) : old_c(b, unit, lanes);
        next[0] = Cell::output(save, affine(norm_c, weights.params[1], weights.params[2], unit, lanes));
        next[1] = V::load(cells + unit, lanes);
        put(b, unit, lanes, old, next, save);
      });
    }
  }
}

// The c that a norm saw, where zoneout has put others in its place.
template <class Cell, class T>
void cells_again(const T* saved, const T* before, T* to, int64_t hidden) {
  using V = Vec<T>;
  if constexpr (Cell::states > 1)
    for_vectors<V>(0, hidden, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
      V save[Cell::saved], old[2] = {V(0), V::load(before + unit, lanes)};
      load_gates(save, Cell::saved, saved, hidden, unit, lanes);
      Cell::next_c(save, old).store(to + unit, lanes);
    });
}

// The norms of one row, backwards: around its equations, which take `before` and `after` for each vector of units.
template <class Cell, class T>
class NormsBackward {
  using V = Vec<T>;
  static constexpr int gates = Cell::gates, own = Cell::saved - gates;

 public:
  // The row of what was saved, of c (or null), and of the gradients of params[0], and of params[1] and [2]; room for
  // G*H + H elements.
  NormsBackward(const Weights<T>& weights, const T* saved, const T* cells, T* const* dparams, int64_t b, T* room)
      : weights_(weights),
        hidden_(weights.hidden),
        saved_(saved),
        norm_(saved + own * hidden_, gates * hidden_),
        dgain_(dparams[0] + b * gates * hidden_),
        dr_(room),
        dc_(room + gates * hidden_) {
    if constexpr (Cell::states > 1) {
      norm_c_.emplace(cells, hidden_);
      dgain_c_ = dparams[1] + b * hidden_;
      dbias_c_ = dparams[2] + b * hidden_;
    }
  }

  // What comes to c by way of its norm. dh_of(unit, lanes) is the gradient of h.
  template <class DhOf>
  RNNKERN_INLINE void begin(DhOf dh_of) {
    if constexpr (Cell::states > 1) {
      for_vectors<V>(0, hidden_, [&](int64_t unit, auto lanes) RNNKERN_INLINE_LAMBDA {
        V save[own];
        load_gates(save, own, saved_, hidden_, unit, lanes);
        const V dy = Cell::output_backward(save, y(unit, lanes), dh_of(unit, lanes));
        add(dy * (*norm_c_)(unit, lanes), dgain_c_ + unit, lanes);
        add(dy, dbias_c_ + unit, lanes);
        (dy * V::load(weights_.params[1] + unit, lanes)).store(dc_ + unit, lanes);
      });
      norm_c_->backward(dc_,
                        [&](int64_t unit, auto lanes, V dc) RNNKERN_INLINE_LAMBDA { dc.store(dc_ + unit, lanes); });
    }
  }

  // The r that the equations had in place of R h, LN(c) in place of c, and the whole gradient of c.
  RNNKERN_INLINE void before(int64_t unit, int64_t lanes, V* save, V* next, V* grad) const {
    for (int g = 0; g < gates; ++g)
      save[own + g] = affine(norm_, weights_.params[0], weights_.R.bias, g * hidden_ + unit, lanes);
    if constexpr (Cell::states > 1) {
      next[1] = y(unit, lanes);
      grad[1] = grad[1] + V::load(dc_ + unit, lanes);
    }
  }

  RNNKERN_INLINE void after(int64_t unit, int64_t lanes, const V* dr) const {
    for (int g = 0; g < gates; ++g) {
      const int64_t i = g * hidden_ + unit;
      add(dr[g] * norm_(i, lanes), dgain_ + i, lanes);
      (dr[g] * V::load(weights_.params[0] + i, lanes)).store(dr_ + i, lanes);
    }
  }

  // take(i, lanes, the gradient of R h).
  template <class Take>
  RNNKERN_INLINE void end(Take take) const {
    norm_.backward(dr_, take);
  }

 private:
  RNNKERN_INLINE V y(int64_t unit, int64_t lanes) const {
    return affine(*norm_c_, weights_.params[1], weights_.params[2], unit, lanes);
  }
  RNNKERN_INLINE static void add(V x, T* sum, int64_t lanes) { (V::load(sum, lanes) + x).store(sum, lanes); }

  const Weights<T>& weights_;
  const int64_t hidden_;
  const T* const saved_;
  const Norm<T> norm_;
  std::optional<Norm<T>> norm_c_;
  T *dgain_, *dgain_c_ = nullptr, *dbias_c_ = nullptr, *dr_, *dc_;
};

}  // namespace
}  // namespace rnnkern
