#include "recurrence/cuda_plan.h"

#include <algorithm>
#include <cstdlib>
#include <sstream>

#include "recurrence/cells.h"
#include "recurrence/recurrence.h"

namespace rnnkern {
namespace {

constexpr int64_t least_chunk = 64;  // steps: each starts kernels that fetch R again
constexpr int64_t rows_per_multiprocessor = 32;

// Whether RNNKERN_CUDA_KERNELS lists kernels, and not this one.
bool leaves_out(const std::string& kernel) {
  const char* list = std::getenv("RNNKERN_CUDA_KERNELS");
  if (!list) return false;
  bool named = false;
  std::istringstream names(list);
  for (std::string name; std::getline(names, name, ',');) {
    STD_TORCH_CHECK(name == "block" || name == "grid" || name == "stepwise",
                    "RNNKERN_CUDA_KERNELS must be a list of block, grid and stepwise, got '", list, "'");
    named = named || name == kernel;
  }
  return !named;
}

template <class S>
void shapes(Plan& plan, int place) {
  plan.forward = BlockKernels<S>::forward_shape(place, plan.padded);
  plan.backward = BlockKernels<S>::backward_shape(place, plan.padded);
}

// Why no block kernel can serve, or an empty string; sets its part of the plan.
std::string refuse_block(Plan& plan, const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes,
                         bool noisy) {
  if (noisy) return "zoneout and dropout have no block kernel";
  if (leaves_out("block")) return "RNNKERN_CUDA_KERNELS leaves out the block kernel";
  const int64_t d = sizes.hidden / sizes.heads;
  const auto fits = std::find_if(std::begin(block_sizes), std::end(block_sizes), [d](int size) { return size >= d; });
  if (fits == std::end(block_sizes)) return "heads of " + std::to_string(d) + " units do not fit one block";
  if (dtype == ScalarType::Double) return "float64 has no block kernel";
  if (facts.major < 8) return "the block kernel needs compute capability 8.0";
  if (std::max({sizes.steps, sizes.batch, sizes.hidden}) > INT32_MAX / 8)
    return "sizes beyond 2^28 have no block kernel";
  plan.padded = *fits;
  if (dtype == ScalarType::Float) shapes<float>(plan, place);
  if (dtype == ScalarType::BFloat16) shapes<device::bfloat16>(plan, place);
  if (dtype == ScalarType::Half) shapes<device::float16>(plan, place);
  const int64_t wanted = std::max(plan.forward.shared_bytes, plan.backward.shared_bytes);
  if (wanted <= facts.shared_bytes) return "";
  plan.padded = 0;
  return "R needs " + std::to_string(wanted) + " bytes of shared memory, and a block here has " +
         std::to_string(facts.shared_bytes);
}

// What a kernel that keeps R for all steps takes at all.
bool persistent(const device::Facts& facts, ScalarType dtype, const Sizes& sizes, bool noisy) {
  return !noisy && dtype != ScalarType::Double && facts.major >= 8 &&
         std::max({sizes.steps, sizes.batch, sizes.hidden}) <= INT32_MAX / 8;
}

void ask_grid(Plan& plan, const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes) {
  const std::string refusal = leaves_out("grid") ? "RNNKERN_CUDA_KERNELS leaves out the grid kernel"
                                                 : refuse_grid(plan, facts, place, dtype, sizes);
  if (plan.on_grid()) {
    plan.kernel = "grid";
    plan.reason =
        "R of " + std::to_string(sizes.hidden) + " units stays on " + std::to_string(plan.grid.members) + " blocks";
  } else {
    plan.reason += ", and " + refusal;
  }
}

}  // namespace

Plan plan_recurrence(const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes, bool noisy) {
  Plan plan{};
  plan.reason = refuse_block(plan, facts, place, dtype, sizes, noisy);
  if (plan.block()) {
    plan.kernel = "block";
    plan.reason = "heads of " + std::to_string(sizes.hidden / sizes.heads) + " units stay on one block";
  } else {
    plan.kernel = "stepwise";
    plan.forward = plan.backward = {};
    if (persistent(facts, dtype, sizes, noisy)) ask_grid(plan, facts, place, dtype, sizes);
  }
  const int64_t rows = rows_per_multiprocessor * facts.multiprocessors;
  plan.chunk_steps = std::max(least_chunk, rows / std::max<int64_t>(sizes.batch, 1));
  return plan;
}

std::string recurrence_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes, std::vector<int64_t> facts,
                            bool noisy) {
  const int place = find_cell(cell);
  STD_TORCH_CHECK(place >= 0 && place < cuda_cells && sizes.size() == 4 && facts.size() == 4 && sizes[3] > 0 &&
                      sizes[2] % sizes[3] == 0,
                  "recurrence_plan: wants a cell with a kernel, (T, B, H, K), and (major, minor, multiprocessors, "
                  "bytes of shared memory)");
  const ScalarType type = dtype == "float32"    ? ScalarType::Float
                          : dtype == "float64"  ? ScalarType::Double
                          : dtype == "bfloat16" ? ScalarType::BFloat16
                                                : ScalarType::Half;
  const Plan plan = plan_recurrence({int(facts[0]), int(facts[1]), int(facts[2]), facts[3]}, place, type,
                                    {sizes[0], sizes[1], sizes[2], sizes[3]}, noisy);
  const auto shape = [&](const char* name, const BlockShape& s) {
    const int64_t tiles = s.columns ? (sizes[1] + s.columns - 1) / s.columns * sizes[3] : 0;
    const int64_t blocks = plan.on_grid() ? plan.grid.blocks() : tiles;
    return std::string(", \"") + name + "\": {\"blocks\": " + std::to_string(blocks) +
           ", \"threads\": " + std::to_string(s.threads) + ", \"columns\": " + std::to_string(s.columns) +
           ", \"shared_bytes\": " + std::to_string(s.shared_bytes) + "}";
  };
  return std::string("{\"kernel\": \"") + plan.kernel + "\", \"reason\": \"" + plan.reason +
         "\", \"padded\": " + std::to_string(plan.padded) + ", \"chunk_steps\": " + std::to_string(plan.chunk_steps) +
         shape("forward", plan.forward) + shape("backward", plan.backward) + "}";
}

}  // namespace rnnkern
