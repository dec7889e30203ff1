// The arguments of the CUDA kernels of the recurrence with layers of Givens rotations, and the layout of a warp. A warp
// has one sequence: lane i has numbers i * each to i * each + each - 1 of the N numbers, followed by zeros, and `each`
// / 2 pairs of every layer. T is float or double.
#pragma once

#include "device/device.h"
#include "orthogonal/givens_sizes.h"

namespace rnnkern::givens {

using device::warp_size;

template <class T>
struct alignas(2 * sizeof(T)) SinCos {
  T cosine, sine;
};

constexpr int64_t most_parts = 1024;  // maximum number of partial sums over sequences, one per warp, on every device
constexpr int64_t most_words = 64;    // maximum of 4-byte registers for the state of a lane; half as many doubles

// Whether a lane can hold this many reals of a state.
template <class T>
constexpr bool fits(int64_t reals) {
  return reals * int64_t(sizeof(T)) * int64_t(sizeof(T)) / 16 <= most_words;
}

// All parameters, in the order in which lanes read them: entry (l, k, lane) of the angles and of the phases belongs to
// the lane's pair k in layer l; entry (k, lane) of D's phases and of b belongs to the lane's number k.
struct Packing {
  GivensSizes sizes;
  int64_t each;
  bool is_complex;

  RNNKERN_HOST_DEVICE int64_t of_layer() const { return each / 2 * warp_size; }
  RNNKERN_HOST_DEVICE int64_t angles() const { return sizes.layers * of_layer(); }
  RNNKERN_HOST_DEVICE int64_t of_numbers() const { return each * warp_size; }
  RNNKERN_HOST_DEVICE int64_t phases() const { return angles(); }  // offset of the phases; likewise below
  RNNKERN_HOST_DEVICE int64_t diagonal() const { return is_complex ? 2 * angles() : angles(); }
  RNNKERN_HOST_DEVICE int64_t bias() const { return diagonal() + (is_complex ? of_numbers() : 0); }
  RNNKERN_HOST_DEVICE int64_t total() const { return bias() + of_numbers(); }

  // Number of layers after which the pairs repeat.
  int64_t stages() const {
    int64_t found = 1;
    if (!sizes.butterfly) return 2;
    while (int64_t(1) << found < sizes.size) ++found;
    return found;
  }

  // The index j of the lane's pair k in a layer, whether or not it exists.
  RNNKERN_HOST_DEVICE int64_t pair(int64_t layer, int64_t k, int64_t lane) const {
    const int64_t stride = layer_of(sizes, layer).stride;
    if (stride < each) return lane * each / 2 + k;
    const int64_t apart = stride / each, lower = lane & ~apart;  // two lanes share `each` pairs
    const int64_t first = lower * each + k + (lane & apart ? each / 2 : 0);
    return first / (2 * stride) * stride + first % stride;
  }

  // Calls f(tensor: 0 angles, 1 phases, 2 D's phases, 3 b; index in it; whether it is used) if such an entry exists.
  template <class F>
  RNNKERN_HOST_DEVICE void find(int64_t entry, F f) const {
    const int64_t lane = entry % warp_size;
    if (entry < diagonal()) {
      const int64_t own = entry % angles(), layer = own / of_layer();
      const int64_t j = pair(layer, own % of_layer() / warp_size, lane);
      if (j < sizes.pairs()) f(entry < angles() ? 0 : 1, layer * sizes.pairs() + j, j < layer_of(sizes, layer).pairs);
      return;
    }
    const int64_t number = lane * each + (entry - diagonal()) % of_numbers() / warp_size;
    if (number < sizes.size) f(entry < bias() ? 2 : 3, number, true);
  }
};

// Writes the cosine and sine of every entry except those of b, from those of the tensors; for angle 0 if there is none.
template <class T>
struct TurnProblem {
  Packing packing;
  const T *cosines[3], *sines[3];
  SinCos<T>* sincos;
};

// Sums every entry over parts.
template <class T>
struct SumProblem {
  Packing packing;
  int64_t parts;
  const T* sums;  // (parts, packing.total())
  T* to[4];
};

template <class T>
struct Problem {
  Packing packing;
  GivensSequences sequences;
  int stages, last_stage;  // as in Packing; the stage of the last layer
  const SinCos<T>* sincos;
  const T *bias, *u, *h0;
};

template <class T>
struct ForwardProblem : Problem<T> {
  T *h, *last;
};

template <class T>
struct BackwardProblem : Problem<T> {
  const T *h, *grad_h, *grad_last;  // each gradient may be null
  T *grad_u, *grad_h0;
  T* sums;       // (blocks, packing.total())
  bool on_chip;  // whether sums are kept in shared memory until the end
};

}  // namespace rnnkern::givens
