// Which CUDA kernels serve a call: the written table, a pure function.
#pragma once

#include "common/tensor.h"
#include "cuda/facts.h"
#include "cuda/kinds.h"
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

// Its place in the list.
int find_cell(const std::string& name);

struct Sizes {
  // T, B, n, nu, rho. Not the slots that a call has: its chunks would take other kernels, and have other bits.
  int64_t steps, batch, hidden, buffer_size, relevant_size;
};

// What a plan is made for. `dtype` is the caller's; what has 16 bits is computed in float32.
struct Wanted {
  cuda::Facts facts;
  int place;
  ScalarType dtype;
  Sizes sizes;
};

struct Plan {
  KernelKind kind = KernelKind::stepwise;
  std::string reason;
  int padded = 0;                         // the n that the kernel is compiled for
  ScalarType stored = ScalarType::Float;  // how block kernels hold weights
  bool backward = false;                  // whether the kind serves the backward too

  bool stepwise() const { return kind == KernelKind::stepwise; }
  KernelKind backward_kind() const { return backward ? kind : KernelKind::stepwise; }
  // The kernels of a plan that is not stepwise, for a memory of so many.
  Residents kernels(int place, int64_t slots, int64_t relevant_size) const;
};

Plan plan_relevancy(const Wanted& wanted);

}  // namespace rnnkern::relevancy
