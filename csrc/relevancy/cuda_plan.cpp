#include "relevancy/cuda_plan.h"

#include <algorithm>

#include "common/left_out.h"
#include "relevancy/relevancy.h"

namespace rnnkern::relevancy {
namespace {

// Turns that multiprocessors or clusters take, a sample each, before products of many win, and that clusters take
// before blocks win whose weights do not fit but in 16 bits: they widen them at every step (docs/gpu.md).
constexpr int64_t turns = 4, turns_of_clusters = 2;

constexpr int64_t most_slots = 1 << 20;  // more is no bound, and no chip holds it

bool has(ScalarType stored, int place, int padded) {
  return by_storage(stored, [&](auto kernels) { return kernels.has(place, padded); });
}

// Why no block kernel can serve, or an empty string; sets its part of the plan.
std::string refuse(Plan& plan, const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes) {
  if (leaves_out("block")) return left_out("block");
  if (dtype == ScalarType::Double) return "float64 has no block kernel";
  if (facts.major < 8) return "the block kernel needs compute capability 8.0";
  if (sizes.buffer_size > most_slots) return "a memory without bound has no block kernel";
  const auto fits = std::find_if(std::begin(sample_sizes), std::end(sample_sizes), [&](int padded) {
    return padded >= sizes.hidden && (has(dtype, place, padded) || has(ScalarType::Float, place, padded));
  });
  if (fits == std::end(sample_sizes)) {
    return "weights of " + std::to_string(sizes.hidden) + " units and " + std::to_string(cells[place].gates) +
           (cells[place].gates > 1 ? " gates" : " gate") + " do not fit one block";
  }
  if (sizes.batch > turns * facts.multiprocessors) {
    return std::to_string(sizes.batch) + " samples are more than " + std::to_string(turns) + " for each of " +
           std::to_string(facts.multiprocessors) + " multiprocessors";
  }
  const ScalarType stored = has(dtype, place, *fits) ? dtype : ScalarType::Float;
  const int64_t bytes = by_storage(stored, [&](auto kernels) {
    return kernels.forward_bytes(place, *fits, sizes.buffer_size, sizes.relevant_size);
  });
  if (bytes > facts.shared_bytes) {
    return "a memory of " + std::to_string(sizes.buffer_size + sizes.relevant_size) +
           " and the weights beside it need " + std::to_string(bytes) +
           " bytes of shared memory, and a block here has " + std::to_string(facts.shared_bytes);
  }
  plan.padded = *fits;
  plan.stored = stored;
  return "";
}

// Likewise of a cluster kernel.
std::string refuse_cluster(Plan& plan, const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes,
                           int64_t most_turns) {
  if (leaves_out("cluster")) return left_out("cluster");
  if (dtype == ScalarType::Double) return "nor a cluster kernel";
  if (sizes.buffer_size > most_slots) return "nor a cluster kernel";
  if (facts.major < 9) return "clusters need compute capability 9.0";
  const auto fits = std::find_if(std::begin(cluster_sizes), std::end(cluster_sizes), [&](int padded) {
    return padded >= sizes.hidden && ClusterKernels::blocks(place, padded) > 0;
  });
  if (fits == std::end(cluster_sizes)) return "they outgrow a cluster";
  const int blocks = ClusterKernels::blocks(place, *fits);
  const int64_t resident = facts.resident(blocks);
  if (resident == 0) return "no cluster of " + std::to_string(blocks) + " blocks runs here";
  if (sizes.batch > most_turns * resident) {
    return std::to_string(sizes.batch) + " samples are more than " + std::to_string(most_turns) + " for each of " +
           std::to_string(resident) + " clusters";
  }
  const int64_t bytes = ClusterKernels::forward_bytes(place, *fits, sizes.buffer_size, sizes.relevant_size);
  if (bytes > facts.shared_bytes) {
    return "a memory of " + std::to_string(sizes.buffer_size + sizes.relevant_size) + " needs " +
           std::to_string(bytes) + " bytes of shared memory in each block of a cluster, and here are " +
           std::to_string(facts.shared_bytes);
  }
  plan.cluster = *fits;
  return "";
}

}  // namespace

int find_cell(const std::string& name) {
  int place = 0;
  while (place < int(std::size(cells)) && name != cells[place].name) ++place;
  STD_TORCH_CHECK(place < int(std::size(cells)), "relevancy_recurrence: the cell `", name, "` has no kernel");
  return place;
}

Plan plan_relevancy(const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes) {
  Plan plan{};
  plan.reason = refuse(plan, facts, place, dtype, sizes);
  const bool widens = plan.padded > 0 && !has(ScalarType::Float, place, plan.padded);
  if (plan.padded == 0 || widens) {
    const std::string refusal = refuse_cluster(plan, facts, place, dtype, sizes, widens ? turns_of_clusters : turns);
    if (plan.cluster > 0) {
      plan.padded = 0;
    } else if (!widens) {
      plan.reason += ", and " + refusal;
      return plan;
    }
  }
  const bool on_block = plan.padded > 0;
  const int64_t bytes =
      on_block ? by_storage(plan.stored, [&](auto kernels) { return kernels.backward_bytes(place, plan.padded); })
               : ClusterKernels::backward_bytes(place, plan.cluster, sizes.buffer_size, sizes.relevant_size);
  plan.backward = bytes <= facts.shared_bytes;
  plan.reason = "weights of " + std::to_string(sizes.hidden) + " units stay on ";
  plan.reason += on_block ? "one block"
                          : "a cluster of " + std::to_string(ClusterKernels::blocks(place, plan.cluster)) + " blocks";
  if (on_block && plan.stored != ScalarType::Float) plan.reason += " in 16 bits";
  if (!plan.backward) plan.reason += ", backward they do not";
  return plan;
}

}  // namespace rnnkern::relevancy

namespace rnnkern {

std::string relevancy_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes,
                           std::vector<int64_t> facts) {
  STD_TORCH_CHECK(
      sizes.size() == 5 && (facts.size() == 4 || facts.size() == 6),
      "relevancy_plan: wants (T, B, n, nu, rho), and (major, minor, multiprocessors, bytes of shared memory[, clusters "
      "of 8 and of 16 blocks that run at once])");
  device::Facts known{int(facts[0]), int(facts[1]), int(facts[2]), facts[3], {}};
  for (size_t i = 4; i < facts.size(); ++i) known.clusters[i - 4] = int(facts[i]);
  const auto plan = relevancy::plan_relevancy(known, relevancy::find_cell(cell), scalar_type(dtype),
                                              {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]});
  return std::string("{\"forward\": \"") + plan.forward_kernel() + "\", \"backward\": \"" + plan.backward_kernel() +
         "\", \"reason\": \"" + plan.reason + "\", \"padded\": " + std::to_string(plan.padded + plan.cluster) + "}";
}

}  // namespace rnnkern
