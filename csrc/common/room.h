// How a kernel cuts its workspace. Included by the cpu_kernels.h of each family, once per SIMD level.
#pragma once

#include "common/team.h"

namespace rnnkern {
namespace {

// Cuts a workspace into parts that begin at cache lines; without one it only measures.
template <class T>
struct Room {
  T* base;
  int64_t used = 0;

  T* take(int64_t elements) {
    T* const part = base ? base + used : nullptr;
    used += (elements + 15) / 16 * 16;
    return part;
  }
  // Of another type, no larger than T.
  template <class F>
  F* take_as(int64_t elements) {
    constexpr int64_t each = sizeof(T) / sizeof(F);
    return reinterpret_cast<F*>(take((elements + each - 1) / each));
  }
  // Each member's own.
  T* take(int64_t elements, Member me) {
    const int64_t each = (elements + 15) / 16 * 16;
    T* const all = take(each * me.size);
    return all ? all + each * me.rank : nullptr;
  }
};

}  // namespace
}  // namespace rnnkern
