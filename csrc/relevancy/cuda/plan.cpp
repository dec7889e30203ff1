#include "relevancy/cuda/plan.h"

#include <iterator>

#include "relevancy/cuda/stepwise_attention_backward.cuh"
#include "relevancy/cuda/stepwise_attention_forward.cuh"
#include "relevancy/cuda/stepwise_cell.cuh"
#include "relevancy/relevancy.h"

namespace rnnkern::relevancy {
namespace {

// Passes of all samples over the multiprocessors or clusters above which the stepwise kernel is faster; and passes over
// the clusters above which a block kernel is faster whose weights only fit in 16 bits, so that it converts them in
// every step (docs/developers/cuda.md).
constexpr int64_t most_waves = 4, most_waves_of_clusters = 2;

constexpr int64_t most_slots = 1 << 20;  // more means unbounded, and fits no kernel

Residents on_block(ScalarType stored, int cell_id, int padded, int64_t slots, int64_t relevant_size) {
  return cuda::by_narrow_storage(
      stored, [&]<class S>(S) { return per_sequence_kernels<S>(cell_id, padded, slots, relevant_size); });
}

bool has(ScalarType stored, int cell_id, int padded) { return on_block(stored, cell_id, padded, 1, 0).forward.kernel; }

Plan refused(std::string why) { return {.reason = std::move(why)}; }

// Both functions return a stepwise plan, with the reason, if their kernel cannot run the call.
Plan plan_block(const Wanted& wanted) {
  const Sizes& sizes = wanted.sizes;
  const int cell_id = wanted.cell_id, gates = cells[cell_id].gates;
  if (const std::string why = cuda::kernel_filter(KernelKind::block); !why.empty()) return refused(why);
  if (wanted.dtype == ScalarType::Double) return refused("float64 has no block kernel");
  if (wanted.facts.major < 8) return refused("the block kernel needs compute capability 8.0");
  if (sizes.buffer_size > most_slots) return refused("a memory without bound has no block kernel");
  const int padded = PerSequenceSizes::least(sizes.hidden, [&](int size) {
    return has(wanted.dtype, cell_id, size) || has(ScalarType::Float, cell_id, size);
  });
  if (padded == 0) {
    return refused("weights of " + std::to_string(sizes.hidden) + " units and " + std::to_string(gates) +
                   (gates > 1 ? " gates" : " gate") + " do not fit one block");
  }
  if (sizes.batch > most_waves * wanted.facts.multiprocessors) {
    return refused(std::to_string(sizes.batch) + " samples are more than " + std::to_string(most_waves) +
                   " for each of " + std::to_string(wanted.facts.multiprocessors) + " multiprocessors");
  }
  Plan plan{.kind = KernelKind::block, .padded = padded};
  plan.stored = has(wanted.dtype, cell_id, padded) ? wanted.dtype : ScalarType::Float;
  const Residents kernels = plan.kernels(cell_id, sizes.buffer_size, sizes.relevant_size);
  if (kernels.forward.shared_bytes > wanted.facts.shared_bytes) {
    return refused("a memory of " + std::to_string(sizes.buffer_size + sizes.relevant_size) +
                   " and the weights beside it need " + std::to_string(kernels.forward.shared_bytes) +
                   " bytes of shared memory, and a block of this GPU has " + std::to_string(wanted.facts.shared_bytes));
  }
  plan.backward = kernels.backward.shared_bytes <= wanted.facts.shared_bytes;
  plan.reason = "weights of " + std::to_string(sizes.hidden) + " units stay on one block";
  if (plan.stored != ScalarType::Float) plan.reason += " in 16 bits";
  return plan;
}

Plan plan_cluster(const Wanted& wanted, int64_t max_waves) {
  const Sizes& sizes = wanted.sizes;
  if (const std::string why = cuda::kernel_filter(KernelKind::cluster); !why.empty()) return refused(why);
  if (wanted.dtype == ScalarType::Double) return refused("no cluster kernel");
  if (sizes.buffer_size > most_slots) return refused("no cluster kernel");
  if (wanted.facts.major < 9) return refused("clusters need compute capability 9.0");
  const auto kernels_of = [&](int size) {
    return cluster_kernels(wanted.cell_id, size, sizes.buffer_size, sizes.relevant_size);
  };
  const int padded =
      ClusterSizes::least(sizes.hidden, [&](int size) { return kernels_of(size).forward.kernel != nullptr; });
  if (padded == 0) return refused("they are too large for a cluster");
  const Residents kernels = kernels_of(padded);
  const int blocks = kernels.forward.cluster;
  const int64_t resident = wanted.facts.resident(blocks);
  if (resident == 0) return refused("the GPU runs no cluster of " + std::to_string(blocks) + " blocks");
  if (sizes.batch > max_waves * resident) {
    return refused(std::to_string(sizes.batch) + " samples are more than " + std::to_string(max_waves) +
                   " for each of " + std::to_string(resident) + " clusters");
  }
  if (kernels.forward.shared_bytes > wanted.facts.shared_bytes) {
    return refused("a memory of " + std::to_string(sizes.buffer_size + sizes.relevant_size) + " needs " +
                   std::to_string(kernels.forward.shared_bytes) +
                   " bytes of shared memory in each block of a cluster, and the GPU has " +
                   std::to_string(wanted.facts.shared_bytes));
  }
  return {.kind = KernelKind::cluster,
          .reason = "weights of " + std::to_string(sizes.hidden) + " units stay on a cluster of " +
                    std::to_string(blocks) + " blocks",
          .padded = padded,
          .backward = kernels.backward.shared_bytes <= wanted.facts.shared_bytes};
}

// All kernels that a call with this plan starts, forward and backward.
template <class T>
std::vector<const cuda::Kernel*> kernels_of(const Plan& plan, const Wanted& wanted) {
  std::vector<const cuda::Kernel*> kernels = visit_cell(wanted.cell_id, []<class Cell>(CellType<Cell>) {
    return std::vector{&cuda::kernel<CellForwardKernel<Cell, T>>, &cuda::kernel<CellBackwardKernel<Cell, T>>};
  });
  kernels.insert(kernels.end(),
                 {&cuda::kernel<RememberKernel<T>>, &cuda::kernel<StepwiseAttentionForwardKernel<T>>,
                  &cuda::kernel<StepwiseAttentionBackwardKernel<T>>, &cuda::kernel<LeaveKernel<T>>,
                  &cuda::kernel<PreviousKernel<T>>, &cuda::kernel<AddKernel<T>>, &cuda::kernel<HistoryKernel>});
  if (plan.stepwise()) return kernels;
  const Residents kept = plan.kernels(wanted.cell_id, wanted.sizes.buffer_size, wanted.sizes.relevant_size);
  const auto add = [&](const Resident& resident) {
    kernels.push_back(resident.kernel);
    if (resident.pack) kernels.push_back(resident.pack);
  };
  add(kept.forward);
  if (plan.backward) add(kept.backward);
  return kernels;
}

}  // namespace

int find_cell(const std::string& name) {
  int cell_id = 0;
  while (cell_id < int(std::size(cells)) && name != cells[cell_id].name) ++cell_id;
  STD_TORCH_CHECK(cell_id < int(std::size(cells)), "relevancy_recurrence: the cell `", name, "` has no kernel");
  return cell_id;
}

Residents Plan::kernels(int cell_id, int64_t slots, int64_t relevant_size) const {
  return kind == KernelKind::cluster ? cluster_kernels(cell_id, padded, slots, relevant_size)
                                     : on_block(stored, cell_id, padded, slots, relevant_size);
}

Plan plan_relevancy(const Wanted& wanted) {
  Plan block = plan_block(wanted);
  // Weights that only fit in 16 bits are converted in every step.
  const bool widens = !block.stepwise() && !has(ScalarType::Float, wanted.cell_id, block.padded);
  Plan plan = block;
  if (block.stepwise() || widens) {
    const Plan cluster = plan_cluster(wanted, widens ? most_waves_of_clusters : most_waves);
    if (!cluster.stepwise()) {
      plan = cluster;
    } else if (!widens) {
      return refused(block.reason + ", and " + cluster.reason);
    }
  }
  if (!plan.backward) plan.reason += ", backward they do not";
  return plan;
}

}  // namespace rnnkern::relevancy

namespace rnnkern {

std::string relevancy_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes,
                           std::vector<int64_t> facts) {
  STD_TORCH_CHECK(sizes.size() == 5, "relevancy_plan: wants sizes (T, B, n, nu, rho)");
  const relevancy::Wanted wanted{cuda::facts_from("relevancy_plan", facts),
                                 relevancy::find_cell(cell),
                                 scalar_type(dtype),
                                 {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]}};
  const auto plan = relevancy::plan_relevancy(wanted);
  const auto kernels = wanted.dtype == ScalarType::Double ? relevancy::kernels_of<double>(plan, wanted)
                                                          : relevancy::kernels_of<float>(plan, wanted);
  return std::string("{\"forward\": \"") + name(plan.kind) + "\", \"backward\": \"" + name(plan.backward_kind()) +
         "\", \"reason\": \"" + plan.reason + "\", \"padded\": " + std::to_string(plan.padded) +
         ", \"programs\": " + cuda::programs_of(kernels) + "}";
}

}  // namespace rnnkern
