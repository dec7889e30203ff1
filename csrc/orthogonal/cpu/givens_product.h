// Products with layers of Givens rotations. Both directions are here, because they share the transpositions that put a
// vector into each lane. Included once per SIMD level.
#pragma once

#include "cpu/kernel.h"
#include "orthogonal/cpu/givens_problem.h"

namespace rnnkern {
namespace {

// Vectors that are processed at a time: the lanes of two registers. Row i of a block holds element i of all of them.
template <class T>
constexpr int64_t block_lanes = 2 * Vec<T>::width;

template <class T>
int64_t block_count(const GivensSizes& sizes) {
  return (sizes.vectors + block_lanes<T> - 1) / block_lanes<T>;
}

// Pointers to a row for each lane; null for lanes without one.
template <class Pointer>
struct LaneRows {
  Pointer of[RNNKERN_VECTOR_BYTES / sizeof(*Pointer())];
  bool any;
};

// Loads rows into lanes, or adds them to what is there: element i of all rows goes to to + i * stride. Lanes without a
// row are zero.
template <bool add, class T>
void load_rows(const LaneRows<const T*>& rows, int64_t elements, T* to, int64_t stride = Vec<T>::width) {
  using V = Vec<T>;
  for (int64_t i = 0; i < elements; i += V::width) {
    V v[V::width];
    for (int64_t lane = 0; lane < V::width; ++lane)
      v[lane] = rows.of[lane] ? V::load(rows.of[lane] + i, elements - i) : V(T(0));
    transpose<T>(v);
    for (int64_t k = 0; k < smaller(V::width, elements - i); ++k) {
      T* const place = to + (i + k) * stride;
      (add ? V::load(place) + v[k] : v[k]).store(place);
    }
  }
}

template <class T>
void store_rows(const T* from, int64_t elements, const LaneRows<T*>& rows, int64_t stride = Vec<T>::width) {
  using V = Vec<T>;
  for (int64_t i = 0; i < elements; i += V::width) {
    V v[V::width];
    for (int64_t k = 0; k < V::width; ++k) v[k] = i + k < elements ? V::load(from + (i + k) * stride) : V(T(0));
    transpose<T>(v);
    for (int64_t lane = 0; lane < V::width; ++lane)
      if (rows.of[lane]) v[lane].store(rows.of[lane] + i, elements - i);
  }
}

// As many of the rows first..first + count - 1 of a matrix as there are lanes.
template <class T>
LaneRows<T*> rows_of(const GivensSizes& sizes, T* matrix, int64_t first, int64_t count) {
  LaneRows<T*> found{};
  for (int64_t lane = 0; lane < smaller(Vec<std::remove_const_t<T>>::width, count); ++lane)
    found.of[lane] = matrix + (first + lane) * sizes.size;
  return found;
}

// Loads vectors first..first + count - 1 of a matrix into a block; the remaining lanes are zero.
template <class T>
void load_block(const GivensSizes& sizes, const T* from, int64_t first, int64_t count, T* block) {
  using V = Vec<T>;
  constexpr int64_t lanes = block_lanes<T>;
  for (int64_t at = 0; at < lanes; at += V::width) {
    if (!sizes.columns) load_rows<false>(rows_of(sizes, from, first + at, count - at), sizes.size, block + at, lanes);
    for (int64_t i = 0; sizes.columns && i < sizes.size; ++i)
      V::load(from + i * sizes.vectors + first + at, count - at).store(block + i * lanes + at);
  }
}

template <class T>
void store_block(const GivensSizes& sizes, const T* block, int64_t first, int64_t count, T* to) {
  using V = Vec<T>;
  constexpr int64_t lanes = block_lanes<T>;
  for (int64_t at = 0; at < smaller(lanes, count); at += V::width) {
    if (!sizes.columns) store_rows(block + at, sizes.size, rows_of(sizes, to, first + at, count - at), lanes);
    for (int64_t i = 0; sizes.columns && i < sizes.size; ++i)
      V::load(block + i * lanes + at).store(to + i * sizes.vectors + first + at, count - at);
  }
}

// The sum over the lanes of each of V::width vectors, which are overwritten.
template <class T>
RNNKERN_INLINE Vec<T> sums_over_lanes(Vec<T>* v) {
  transpose<T>(v);
  for (int64_t half = Vec<T>::width / 2; half; half /= 2)
    for (int64_t k = 0; k < half; ++k) v[k] = v[k] + v[k + half];
  return v[0];
}

// Interleaved cosines and sines of all angles.
template <class T>
void compute_sincos(const T* angles, int64_t all, T* sincos, ThreadContext me) {
  const auto [first, last] = me.share(all);
  for (int64_t k = first; k < last; ++k) {
    sincos[2 * k] = std::cos(angles[k]);
    sincos[2 * k + 1] = std::sin(angles[k]);
  }
}

// (x_a, x_b) becomes (c x_a - s x_b, s x_a + c x_b).
template <class T>
RNNKERN_INLINE void rotate(Vec<T> c, Vec<T> s, T* a, T* b) {
  const Vec<T> x = Vec<T>::load(a), y = Vec<T>::load(b);
  (c * x - s * y).store(a);
  (s * x + c * y).store(b);
}

// ---- forward

template <class T>
struct GivensForwardWorkspace {
  T *sincos, *block;

  GivensForwardWorkspace(const GivensForward<T>& problem, Workspace<T>& workspace, ThreadContext me)
      : sincos(workspace.alloc(2 * problem.sizes.count * problem.sizes.angles())),
        block(workspace.alloc(problem.sizes.size * block_lanes<T>, me)) {}
};

template <class T>
void givens_forward(const GivensForward<T>& problem, ThreadContext me) {
  using V = Vec<T>;
  constexpr int64_t lanes = block_lanes<T>;
  const GivensSizes& sizes = problem.sizes;
  const auto workspace = lay_out<GivensForwardWorkspace<T>>(problem, me);
  compute_sincos(problem.angles, sizes.count * sizes.angles(), workspace.sincos, me);
  me.barrier();
  const int64_t blocks = block_count<T>(sizes), elements = sizes.vectors * sizes.size;
  const auto [begin, end] = me.share(sizes.count * blocks);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t m = item / blocks, first = item % blocks * lanes, count = smaller(lanes, sizes.vectors - first);
    load_block(sizes, problem.x + m * elements, first, count, workspace.block);
    for (int64_t l = 0; l < sizes.layers; ++l) {
      const GivensLayer layer = layer_of(sizes, l);
      const T* const sincos = workspace.sincos + 2 * (m * sizes.angles() + l * sizes.pairs());
      for (int64_t j = 0; j < layer.pairs; ++j) {
        const V c(sincos[2 * j]), s(sincos[2 * j + 1]);
        T *const a = workspace.block + layer.first(j) * lanes, *const b = a + layer.stride * lanes;
        rotate(c, s, a, b);
        rotate(c, s, a + V::width, b + V::width);
      }
    }
    store_block(sizes, workspace.block, first, count, problem.y + m * elements);
  }
}

// ---- backward: rotates y and its gradient back layer by layer, so that no layer's input is saved

// Number of partial sums over vectors, independent of the team, so that results are the same for any number of threads.
template <class T>
int64_t part_count(const GivensSizes& sizes) {
  return smaller(block_count<T>(sizes), 16);
}

template <class T>
struct GivensBackwardWorkspace {
  T *sincos, *sums, *values, *grads;

  GivensBackwardWorkspace(const GivensBackward<T>& problem, Workspace<T>& workspace, ThreadContext me)
      : sincos(workspace.alloc(2 * problem.sizes.count * problem.sizes.angles())),
        sums(workspace.alloc(part_count<T>(problem.sizes) * problem.sizes.count * problem.sizes.angles())),
        values(workspace.alloc(problem.sizes.size * block_lanes<T>, me)),
        grads(workspace.alloc(problem.sizes.size * block_lanes<T>, me)) {}
};

// Rotates a pair of values and gradients back; returns the gradient of the angle, per lane.
template <class T>
RNNKERN_INLINE Vec<T> rotate_back(Vec<T> c, Vec<T> s, T* values, T* grads, int64_t apart) {
  const Vec<T> along = Vec<T>::load(grads + apart) * Vec<T>::load(values);
  const Vec<T> grad = along - Vec<T>::load(grads) * Vec<T>::load(values + apart);
  const Vec<T> back = Vec<T>(T(0)) - s;
  rotate(c, back, values, values + apart);
  rotate(c, back, grads, grads + apart);
  return grad;
}

template <class T>
void unrotate_layer(const GivensLayer& layer, const T* sincos, T* values, T* grads, T* sums) {
  using V = Vec<T>;
  constexpr int64_t lanes = block_lanes<T>, width = V::width;
  for (int64_t first = 0; first < layer.pairs; first += width) {
    V found[width];
    for (int64_t k = 0; k < width; ++k) {
      const int64_t j = first + k;
      found[k] = V(T(0));
      if (j >= layer.pairs) continue;
      const V c(sincos[2 * j]), s(sincos[2 * j + 1]);
      const int64_t at = layer.first(j) * lanes, apart = layer.stride * lanes;
      found[k] = rotate_back(c, s, values + at, grads + at, apart) +
                 rotate_back(c, s, values + at + width, grads + at + width, apart);
    }
    const int64_t left = layer.pairs - first;
    (V::load(sums + first, left) + sums_over_lanes<T>(found)).store(sums + first, left);
  }
}

template <class T>
void givens_backward(const GivensBackward<T>& problem, ThreadContext me) {
  constexpr int64_t lanes = block_lanes<T>;
  const GivensSizes& sizes = problem.sizes;
  const auto workspace = lay_out<GivensBackwardWorkspace<T>>(problem, me);
  const int64_t angles = sizes.angles(), parts = part_count<T>(sizes), elements = sizes.vectors * sizes.size;
  compute_sincos(problem.angles, sizes.count * angles, workspace.sincos, me);
  me.barrier();
  const auto [begin, end] = me.share(sizes.count * parts);
  for (int64_t item = begin; item < end; ++item) {
    const int64_t m = item / parts, part = item % parts, blocks = block_count<T>(sizes);
    T* const sums = workspace.sums + item * angles;
    std::memset(sums, 0, sizeof(T) * angles);
    for (int64_t block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
      const int64_t first = block * lanes, count = smaller(lanes, sizes.vectors - first);
      load_block(sizes, problem.y + m * elements, first, count, workspace.values);
      load_block(sizes, problem.grad + m * elements, first, count, workspace.grads);
      for (int64_t l = sizes.layers; l-- > 0;) {
        const int64_t at = l * sizes.pairs();
        unrotate_layer(layer_of(sizes, l), workspace.sincos + 2 * (m * angles + at), workspace.values, workspace.grads,
                       sums + at);
      }
      if (problem.grad_x) store_block(sizes, workspace.grads, first, count, problem.grad_x + m * elements);
    }
  }
  me.barrier();
  const auto [first, last] = me.share(sizes.count * angles);
  for (int64_t k = first; k < last; ++k) {
    const T* const sums = workspace.sums + k / angles * parts * angles + k % angles;
    T sum = 0;
    for (int64_t part = 0; part < parts; ++part) sum += sums[part * angles];
    problem.grad_angles[k] = sum;
  }
}

}  // namespace
}  // namespace rnnkern
