// Selects the CUDA kernels of a call. A pure function.
#pragma once

#include "cuda/plans.h"
#include "relevancy/cells.h"
#include "relevancy/cuda/kernels.h"

namespace rnnkern::relevancy {

using cuda::KernelKind;

struct Cell {
  const char* name;
  int gates, states, params, saved;
};

#define RNNKERN_INFO(Cell) {Cell::name, Cell::gates, Cell::states, Cell::params, Cell::saved},
constexpr Cell cells[] = {RNNKERN_RELEVANCY_CELLS(RNNKERN_INFO)};
#undef RNNKERN_INFO

// The index of a cell in the list.
int find_cell(const std::string& name);

struct Sizes {
  // T, B, n, nu, rho. Not the number of slots of the call: chunks of a sequence would use other kernels.
  int64_t steps, batch, hidden, buffer_size, relevant_size;
};

// What a plan depends on. `dtype` is the caller's; 16-bit types are computed in float32.
struct Wanted {
  cuda::Facts facts;
  int cell_id;
  ScalarType dtype;
  Sizes sizes;
};

struct Plan {
  KernelKind kind = KernelKind::stepwise;
  std::string reason;
  int padded = 0;                         // the n for which the kernel is compiled
  ScalarType stored = ScalarType::Float;  // the type in which block kernels keep weights
  bool backward = false;                  // whether the backward uses this kernel too

  bool stepwise() const { return kind == KernelKind::stepwise; }
  KernelKind backward_kind() const { return backward ? kind : KernelKind::stepwise; }
  // The kernels of a plan that is not stepwise, for a memory of this size.
  Residents kernels(int cell_id, int64_t slots, int64_t relevant_size) const;
};

Plan plan_relevancy(const Wanted& wanted);

}  // namespace rnnkern::relevancy
