// How a kernel cuts its workspace. Once per SIMD level.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/team.h"

namespace rnnkern {
namespace {

// Cuts a workspace into parts that begin at cache lines; without one it only measures.
template <class T>
struct Workspace {
  T* base;
  int64_t used = 0;

  T* alloc(int64_t elements) {
    T* const part = base ? base + used : nullptr;
    used += (elements + 15) / 16 * 16;
    return part;
  }
  // Of another type.
  template <class F>
  F* alloc_as(int64_t elements) {
    return reinterpret_cast<F*>(alloc((elements * sizeof(F) + sizeof(T) - 1) / sizeof(T)));
  }
  // Each member's own.
  T* alloc(int64_t elements, ThreadContext me) {
    const int64_t each = (elements + 15) / 16 * 16;
    T* const all = alloc(each * me.size);
    return all ? all + each * me.rank : nullptr;
  }
};

// Elements that a team takes of a workspace that is cut as `Layout` has it.
template <class Layout, class Problem>
int64_t room_of(const Problem& problem, int team) {
  Workspace<std::remove_pointer_t<decltype(problem.workspace)>> workspace{nullptr};
  Layout(problem, workspace, ThreadContext{0, team, nullptr});
  return workspace.used;
}

// A member's view of that workspace.
template <class Layout, class Problem>
Layout lay_out(const Problem& problem, ThreadContext me) {
  Workspace<std::remove_pointer_t<decltype(problem.workspace)>> workspace{problem.workspace};
  return Layout(problem, workspace, me);
}

}  // namespace
}  // namespace rnnkern
