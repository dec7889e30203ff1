#include "recurrence/cuda_plan.h"

#include <algorithm>
#include <sstream>

#include "common/left_out.h"
#include "recurrence/cells.h"
#include "recurrence/recurrence.h"

namespace rnnkern {
namespace {

constexpr int64_t least_chunk = 64;  // steps: each starts kernels that fetch R again
constexpr int64_t least_cluster_chunk = 256;
constexpr int64_t most_size = INT32_MAX / 8;
constexpr int64_t most_hidden = int64_t(1) << 24;  // block kernels count what lies between sequences of a tile in int
constexpr int64_t rows_per_multiprocessor = 32;

template <class S>
void shapes(Plan& plan, int place) {
  plan.forward = BlockKernels<S>::forward_shape(place, plan.padded);
  plan.backward = BlockKernels<S>::backward_shape(place, plan.padded);
}

// Why no block kernel can serve, or an empty string; sets its part of the plan.
std::string refuse_block(Plan& plan, const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes,
                         bool noisy) {
  if (place >= resident_cells) return "the cell runs step by step alone";
  if (noisy) return "zoneout and dropout have no block kernel";
  if (leaves_out("block")) return left_out("block");
  const int64_t d = sizes.hidden / sizes.heads;
  const auto fits = std::find_if(std::begin(block_sizes), std::end(block_sizes), [d](int size) { return size >= d; });
  if (fits == std::end(block_sizes)) return "heads of " + std::to_string(d) + " units do not fit one block";
  if (dtype == ScalarType::Double) return "float64 has no block kernel";
  if (facts.major < 8) return "the block kernel needs compute capability 8.0";
  if (sizes.most() > most_size) return "sizes beyond 2^28 have no block kernel";
  if (sizes.hidden > most_hidden) return "H beyond 2^24 has no block kernel";
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

using Refuse = std::string(Plan&, const device::Facts&, int, ScalarType, const Sizes&);

// Has a kernel that keeps a dense R serve the call, or adds to the reason why it does not.
bool take(Plan& plan, const char* kernel, Refuse refuse, const device::Facts& facts, int place, ScalarType dtype,
          const Sizes& sizes) {
  const std::string refusal = leaves_out(kernel) ? left_out(kernel) : refuse(plan, facts, place, dtype, sizes);
  if (refusal.empty()) {
    plan.kernel = kernel;
  } else {
    plan.reason += ", and " + refusal;
  }
  return refusal.empty();
}

// What is said where torch.nn measured faster; of 0, which it has not, nothing.
std::string beside_torch(const Measured& row) {
  const auto slower = [](double times) { return times > 0 && times < 1; };
  if (!slower(row.forward) && !slower(row.both)) return "";
  std::ostringstream said;
  said << ", slower than torch.nn: measured at H = " << row.hidden << " and B = " << row.batch << ", " << row.forward
       << " times its speed forward, " << row.both << " with the backward";
  return said.str();
}

}  // namespace

Plan plan_recurrence(const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes, bool noisy,
                     bool (*allows_tf32)(), const std::vector<Measured>& rows) {
  Plan plan{};
  plan.kernel = "stepwise";
  plan.reason = refuse_block(plan, facts, place, dtype, sizes, noisy);
  const Measured* row = nullptr;
  if (sizes.heads == 1 && !noisy) row = find_measured(rows, facts.major, place, dtype, sizes.hidden, sizes.batch);
  if (plan.reason.empty()) {
    plan.kernel = "block";
    plan.reason = "heads of " + std::to_string(sizes.hidden / sizes.heads) + " units stay on one block";
  } else {
    plan.forward = plan.backward = {};
    const bool persistent = place < resident_cells && sizes.heads == 1 && !noisy && dtype != ScalarType::Double &&
                            facts.major >= 8 && sizes.most() <= most_size;
    const std::string stays = "R of " + std::to_string(sizes.hidden) + " units stays on ";
    plan.tf32 = persistent && dtype == ScalarType::Float && allows_tf32();
    if (plan.tf32) row = nullptr;  // they are of exact products
    Plan rival = plan;
    if (persistent && take(plan, "cluster", refuse_cluster, facts, place, dtype, sizes)) {
      plan.reason = stays + "a cluster of " + std::to_string(plan.forward.cluster) + " blocks";
      if (plan.tf32) plan.kernel = "cluster_tf32";
      if (plan.tf32) plan.reason += ", in TF32 as torch.backends.cudnn.rnn.fp32_precision allows";
      if (row && row->kernel == "grid" && take(rival, "grid", refuse_grid, facts, place, dtype, sizes)) {
        plan = rival;
        plan.reason =
            stays + std::to_string(plan.grid.members) + " blocks, which measured faster than a cluster of blocks";
      }
    } else if (persistent && take(plan, "grid", refuse_grid, facts, place, dtype, sizes)) {
      plan.reason = stays + std::to_string(plan.grid.members) + " blocks";
    }
  }
  plan.tf32 = plan.tf32 && plan.cluster();
  if (row && row->kernel == plan.kernel) plan.reason += beside_torch(*row);
  const int64_t at_once = rows_per_multiprocessor * facts.multiprocessors;
  plan.chunk_steps =
      std::max(plan.cluster() ? least_cluster_chunk : least_chunk, at_once / std::max<int64_t>(sizes.batch, 1));
  return plan;
}

std::string device_facts(int64_t index) {
  device::Facts facts;
  const int error = device::facts_of(int(index), facts);
  STD_TORCH_CHECK(error == 0, "device_facts: ", device::error_name(error));
  std::string json = "[";
  for (int64_t fact : {int64_t(facts.major), int64_t(facts.minor), int64_t(facts.multiprocessors), facts.shared_bytes,
                       int64_t(facts.clusters[0])}) {
    json += std::to_string(fact) + ", ";
  }
  return json + std::to_string(facts.clusters[1]) + "]";
}

std::string recurrence_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes, std::vector<int64_t> facts,
                            bool noisy, bool tf32, std::string rows) {
  const int place = find_cell(cell);
  STD_TORCH_CHECK(place >= 0 && sizes.size() == 4 && (facts.size() == 4 || facts.size() == 6) && sizes[3] > 0 &&
                      sizes[2] % sizes[3] == 0,
                  "recurrence_plan: wants a cell with a kernel, (T, B, H, K), and (major, minor, multiprocessors, "
                  "bytes of shared memory[, clusters of 8 and of 16 blocks that run at once])");
  device::Facts known{int(facts[0]), int(facts[1]), int(facts[2]), facts[3], {}};
  for (size_t i = 4; i < facts.size(); ++i) known.clusters[i - 4] = int(facts[i]);
  const auto allows_tf32 = tf32 ? +[] { return true; } : +[] { return false; };
  const Plan plan = plan_recurrence(known, place, scalar_type(dtype), {sizes[0], sizes[1], sizes[2], sizes[3]}, noisy,
                                    allows_tf32, rows.empty() ? measured() : read_measured(rows));
  const auto shape = [&](const char* name, const BlockShape& s) {
    const int64_t tiles = s.columns ? (sizes[1] + s.columns - 1) / s.columns * sizes[3] : 0;
    const int64_t blocks = plan.on_grid() ? plan.grid.blocks() : tiles * s.cluster;
    return std::string(", \"") + name + "\": {\"blocks\": " + std::to_string(blocks) +
           ", \"threads\": " + std::to_string(s.threads) + ", \"columns\": " + std::to_string(s.columns) +
           ", \"shared_bytes\": " + std::to_string(s.shared_bytes) + ", \"cluster\": " + std::to_string(s.cluster) +
           "}";
  };
  return std::string("{\"kernel\": \"") + plan.kernel + "\", \"reason\": \"" + plan.reason +
         "\", \"padded\": " + std::to_string(plan.padded) + ", \"chunk_steps\": " + std::to_string(plan.chunk_steps) +
         shape("forward", plan.forward) + shape("backward", plan.backward) + "}";
}

}  // namespace rnnkern
