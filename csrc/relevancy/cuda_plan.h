// Which CUDA kernels serve a call: the written table, a pure function.
#pragma once

#include "common/tensor.h"
#include "device/facts.h"
#include "relevancy/cells.h"
#include "relevancy/cuda_kernels.h"

namespace rnnkern::relevancy {

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

struct Plan {
  std::string reason;
  int padded;         // the n that the block kernels are compiled for, or 0
  ScalarType stored;  // how the block kernels hold weights
  int cluster;        // the n that the cluster kernels are compiled for, or 0
  bool backward;      // whether either serves the backward too

  bool resident() const { return padded > 0 || cluster > 0; }
  const char* forward_kernel() const { return padded > 0 ? "block" : cluster > 0 ? "cluster" : "stepwise"; }
  const char* backward_kernel() const { return backward ? forward_kernel() : "stepwise"; }
};

// `dtype` is the caller's; what has 16 bits is computed in float32.
Plan plan_relevancy(const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes);

// f(SampleKernels<W>()) of a storage of weights.
template <class F>
auto by_storage(ScalarType stored, F f) {
  if (stored == ScalarType::BFloat16) return f(SampleKernels<device::bfloat16>());
  if (stored == ScalarType::Half) return f(SampleKernels<device::float16>());
  return f(SampleKernels<float>());
}

}  // namespace rnnkern::relevancy
