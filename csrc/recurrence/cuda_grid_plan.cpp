#include <algorithm>

#include "recurrence/cuda_plan.h"

namespace rnnkern {
namespace {

template <class S>
void shapes(Plan& plan, int place, const GridSize& size) {
  const auto shape = [&](const GridShape& s) {
    return BlockShape{size.sets * grid_columns, s.threads, s.shared_bytes};
  };
  plan.forward = shape(GridKernels<S>::forward_shape(place, size));
  plan.backward = shape(GridKernels<S>::backward_shape(place, size));
}

int64_t parts(int64_t all, int64_t part) { return (all + part - 1) / part; }

}  // namespace

// A member has a multiprocessor for itself, which it fills: 256 threads of up to 255 registers, and its shared memory.
std::string refuse_grid(Plan& plan, const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes) {
  const int64_t members = parts(sizes.hidden, units_of_member(dtype == ScalarType::Float ? 4 : 2));
  if (members > facts.multiprocessors) {
    return std::to_string(sizes.hidden) + " units need " + std::to_string(members) + " blocks at once, and here run " +
           std::to_string(facts.multiprocessors);
  }
  const int64_t tiles = parts(sizes.batch, grid_columns), room = facts.multiprocessors / members;
  const int64_t sets = parts(tiles, room);
  if (sets > most_grid_sets) {
    return std::to_string(sizes.batch) + " sequences are more than the " +
           std::to_string(room * most_grid_sets * grid_columns) + " that the grid kernel takes here";
  }
  const GridSize size{int(members), int(sets ? parts(tiles, sets) : 1), int(sets)};
  if (dtype == ScalarType::Float) shapes<float>(plan, place, size);
  if (dtype == ScalarType::BFloat16) shapes<device::bfloat16>(plan, place, size);
  if (dtype == ScalarType::Half) shapes<device::float16>(plan, place, size);
  const int64_t wanted = std::max(plan.forward.shared_bytes, plan.backward.shared_bytes);
  if (wanted <= facts.shared_bytes) {
    plan.grid = size;
    return "";
  }
  plan.forward = plan.backward = {};
  return "a block's share of R needs " + std::to_string(wanted) + " bytes of shared memory, and a block here has " +
         std::to_string(facts.shared_bytes);
}

}  // namespace rnnkern
