// What a kernel of skew_exp is told: pointers and sizes, all checked and allocated by the caller. Matrices are N x N
// and dense, one after the other.
#pragma once

#include <cstdint>
#include <iterator>

#include "common/team.h"
#include "orthogonal/schemes.h"

namespace rnnkern {

// Products that a forward keeps for its backward: all of the longest scheme but the last, which is the result.
template <class T>
constexpr int kept_products = sizeof(T) == 8 ? 3 : 2;

// Which scheme, and how often its result is squared: two numbers per matrix.
constexpr int plan_size = 2;

template <class T>
constexpr const SkewScheme* schemes = sizeof(T) == 8 ? double_schemes : float_schemes;
template <class T>
constexpr int scheme_count = sizeof(T) == 8 ? std::size(double_schemes) : std::size(float_schemes);

template <class T>
struct SkewForward {
  int64_t size, count;  // N, how many matrices
  bool minus_identity;  // exp(S) - I
  const T* A;           // the strict lower triangle is read
  T* result;
  T* kept;        // kept_products of each matrix, or null: then they lie in the room
  int64_t* plan;  // of each matrix, or null
  T* room;
};

template <class T>
struct SkewBackward {
  int64_t size, count;
  int64_t squarings;  // the most of any matrix
  const T *A, *kept, *grad;
  const int64_t* plan;
  T* grad_A;
  T* room;
};

// Members take matrices 0, 1, ... of a call one by one and share out each of them; a call in which each member takes
// matrices of its own gives each a problem of its own, and a team of one.
template <class T>
struct SkewKernels {
  void (*forward)(const SkewForward<T>&, Member);
  void (*backward)(const SkewBackward<T>&, Member);
  int64_t (*forward_room)(const SkewForward<T>&, int team);
  int64_t (*backward_room)(const SkewBackward<T>&, int team);
};

struct SkewLevel {
  SkewKernels<float> of_float;
  SkewKernels<double> of_double;
};

SkewLevel skew_level_plain();
SkewLevel skew_level_avx2();
SkewLevel skew_level_avx512();

}  // namespace rnnkern
