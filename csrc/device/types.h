// The types in the primitives' signatures: qualifiers, words, and storage types of tensors. 16-bit floating-point types
// are only for storage: arithmetic is in float32, for float64 tensors in float64.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__CUDACC__)
#define RNNKERN_DEVICE __device__ __forceinline__
#define RNNKERN_HOST_DEVICE __host__ __device__ __forceinline__
#define RNNKERN_UNROLL _Pragma("unroll")
#define RNNKERN_ROLLED _Pragma("unroll 1")
#else
#define RNNKERN_DEVICE inline
#define RNNKERN_HOST_DEVICE inline
#define RNNKERN_UNROLL
#define RNNKERN_ROLLED
#endif

namespace rnnkern::device {

constexpr int warp_size = 32;

struct alignas(8) Word8 {
  uint32_t x, y;
};

struct alignas(16) Word16 {
  uint32_t x, y, z, w;
};

struct tfloat32 {};

struct bfloat16 {
  uint16_t bits;
};

struct float16 {
  uint16_t bits;
};

// Each 16-bit type, with PyTorch's name of it.
#define RNNKERN_NARROW_TYPES(X) \
  X(bfloat16, BFloat16)         \
  X(float16, Half)

template <class S>
struct ArithmeticOf {
  using type = float;
};
template <>
struct ArithmeticOf<double> {
  using type = double;
};
// The type of the arithmetic for tensors of S.
template <class S>
using Arithmetic = typename ArithmeticOf<S>::type;

RNNKERN_DEVICE float widen(float x) { return x; }
RNNKERN_DEVICE double widen(double x) { return x; }

RNNKERN_DEVICE float widen(bfloat16 x) {
  const uint32_t bits = uint32_t(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

RNNKERN_DEVICE float widen(float16 x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
#else
  _Float16 y;
  std::memcpy(&y, &x.bits, 2);
  return float(y);
#endif
}

// Rounds to nearest, ties to even.
template <class S>
RNNKERN_DEVICE S narrow(Arithmetic<S> x) {
  return x;
}

template <>
RNNKERN_DEVICE bfloat16 narrow<bfloat16>(float x) {
#if defined(__CUDA_ARCH__)
  uint16_t bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return {bits};
#else
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return {0x7fff};
  return {uint16_t((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
#endif
}

template <>
RNNKERN_DEVICE float16 narrow<float16>(float x) {
  uint16_t bits;
#if defined(__CUDA_ARCH__)
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
#else
  const _Float16 y = _Float16(x);
  std::memcpy(&bits, &y, 2);
#endif
  return {bits};
}

}  // namespace rnnkern::device
