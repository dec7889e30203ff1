// Lays out the workspace of a kernel. Compiled once per SIMD level.
#pragma once

#include <cstdint>
#include <type_traits>

#include "common/team.h"

namespace rnnkern {
namespace {

// Allocates cache-line-aligned parts of a workspace. With a null base it only computes the size.
template <class T>
struct Workspace {
  T* base;
  int64_t used = 0;
  Workspace* lasting = nullptr;  // what later calls use too is elsewhere

  T* alloc(int64_t elements) {
    T* const part = base ? base + used : nullptr;
    used += (elements + 15) / 16 * 16;
    return part;
  }
  T* alloc_lasting(int64_t elements) { return lasting ? lasting->alloc(elements) : alloc(elements); }
  // Allocates elements of another type; with a ThreadContext, for each thread.
  template <class F, class... Me>
  F* alloc_as(int64_t elements, Me... me) {
    return reinterpret_cast<F*>(alloc((elements * sizeof(F) + sizeof(T) - 1) / sizeof(T), me...));
  }
  // Allocates `elements` for each thread and returns this thread's.
  T* alloc(int64_t elements, ThreadContext me) {
    const int64_t each = (elements + 15) / 16 * 16;
    T* const all = alloc(each * me.size);
    return all ? all + each * me.rank : nullptr;
  }
};

// Number of workspace elements that `Layout` needs for a team.
template <class Layout, class Problem>
int64_t workspace_size(const Problem& problem, int team) {
  Workspace<std::remove_pointer_t<decltype(problem.workspace)>> workspace{nullptr};
  Layout(problem, workspace, ThreadContext{0, team, nullptr});
  return workspace.used;
}

// This thread's view of the workspace.
template <class Layout, class Problem>
Layout lay_out(const Problem& problem, ThreadContext me) {
  Workspace<std::remove_pointer_t<decltype(problem.workspace)>> workspace{problem.workspace};
  return Layout(problem, workspace, me);
}

}  // namespace
}  // namespace rnnkern
