#include "relevancy/cuda/plan.h"

#include "cuda/library.h"
#include "relevancy/cuda/stepwise_attention_backward.cuh"
#include "relevancy/cuda/stepwise_attention_forward.cuh"
#include "relevancy/cuda/stepwise_cell.cuh"

namespace rnnkern::relevancy {
namespace {

// Passes of all samples over the multiprocessors or clusters above which the stepwise kernel is faster; and passes over
// the clusters above which a block kernel is faster whose weights only fit in 16 bits, so that it converts them in
// every step (docs/developers/cuda.md).
constexpr int64_t most_waves = 4, most_waves_of_clusters = 2;

constexpr int64_t most_slots = 1 << 20;  // more means unbounded, and fits no kernel

using cuda::refused, cuda::text;

using Find = Residents (*)(const Request& request, int64_t slots);

// The kernels for weights of the caller's dtype, unless those for float32 have a smaller size.
Residents on_block(const Request& request, int64_t slots) {
  const int64_t hidden = request.sizes.hidden, relevant_size = request.sizes.relevant_size;
  const Residents exact = table_of<float>(request.cell_id).block(hidden, slots, relevant_size);
  const Residents own = cuda::by_narrow_storage(
      request.dtype, [&]<class W>(W) { return table_of<W>(request.cell_id).block(hidden, slots, relevant_size); });
  return own && (!exact || own.padded <= exact.padded) ? own : exact;
}

Residents on_cluster(const Request& request, int64_t slots) {
  return table_of<float>(request.cell_id).cluster(request.sizes.hidden, slots, request.sizes.relevant_size);
}

// Of kernels that fit with a full buffer, those for the slots of the call. The backward is stepwise if it does not fit.
Residents for_call(const Request& request, const Residents& full, Find find) {
  Residents kernels = find(request, request.sizes.slots);
  if (full.backward.shared_bytes > request.facts.shared_bytes) kernels.backward = {};
  return kernels;
}

// Both functions return a stepwise plan, with the reason, if their kernel cannot run the call.
Plan plan_block(const Request& request) {
  const Sizes& sizes = request.sizes;
  const int gates = cell_list[request.cell_id].gates;
  if (const std::string why = cuda::kernel_filter(KernelKind::block); !why.empty()) return refused(why);
  if (request.dtype == ScalarType::Double) return refused("float64 has no block kernel");
  if (request.facts.major < 8) return refused("the block kernel needs compute capability 8.0");
  if (sizes.buffer_size > most_slots) return refused("a memory without bound has no block kernel");
  const Residents full = on_block(request, sizes.buffer_size);
  if (!full) {
    return refused("weights of ", sizes.hidden, " units and ", gates, gates > 1 ? " gates" : " gate",
                   " do not fit one block");
  }
  if (sizes.batch > most_waves * request.facts.multiprocessors) {
    return refused(sizes.batch, " samples are more than ", most_waves, " for each of ", request.facts.multiprocessors,
                   " multiprocessors");
  }
  if (full.forward.shared_bytes > request.facts.shared_bytes) {
    return refused("a memory of ", sizes.buffer_size + sizes.relevant_size, " and the weights beside it need ",
                   full.forward.shared_bytes, " bytes of shared memory, and a block of this GPU has ",
                   request.facts.shared_bytes);
  }
  const Residents exact = table_of<float>(request.cell_id).block(sizes.hidden, sizes.buffer_size, sizes.relevant_size);
  const bool narrow = full.forward.kernel != exact.forward.kernel;
  return {.kind = KernelKind::block,
          .reason = text("weights of ", sizes.hidden, " units stay on one block", narrow ? " in 16 bits" : ""),
          .kernels = for_call(request, full, &on_block)};
}

Plan plan_cluster(const Request& request, int64_t max_waves) {
  const Sizes& sizes = request.sizes;
  if (const std::string why = cuda::kernel_filter(KernelKind::cluster); !why.empty()) return refused(why);
  if (request.dtype == ScalarType::Double) return refused("no cluster kernel");
  if (sizes.buffer_size > most_slots) return refused("no cluster kernel");
  if (request.facts.major < 9) return refused("clusters need compute capability 9.0");
  const Residents full = on_cluster(request, sizes.buffer_size);
  if (!full) return refused("they are too large for a cluster");
  const int blocks = full.forward.cluster;
  const int64_t resident = request.facts.resident(blocks);
  if (resident == 0) return refused("the GPU runs no cluster of ", blocks, " blocks");
  if (sizes.batch > max_waves * resident)
    return refused(sizes.batch, " samples are more than ", max_waves, " for each of ", resident, " clusters");
  if (full.forward.shared_bytes > request.facts.shared_bytes) {
    return refused("a memory of ", sizes.buffer_size + sizes.relevant_size, " needs ", full.forward.shared_bytes,
                   " bytes of shared memory in each block of a cluster, and the GPU has ", request.facts.shared_bytes);
  }
  return {.kind = KernelKind::cluster,
          .reason = text("weights of ", sizes.hidden, " units stay on a cluster of ", blocks, " blocks"),
          .kernels = for_call(request, full, &on_cluster)};
}

// All kernels that a call with this plan starts, forward and backward.
template <class T>
std::vector<const cuda::Kernel*> all_kernels(const Plan& plan, const Request& request) {
  const KernelTable& table = table_of<T>(request.cell_id);
  std::vector<const cuda::Kernel*> all{table.forward, table.backward};
  all.insert(all.end(),
             {&cuda::kernel<RememberKernel<T>>, &cuda::kernel<StepwiseAttentionForwardKernel<T>>,
              &cuda::kernel<StepwiseAttentionBackwardKernel<T>>, &cuda::kernel<LeaveKernel<T>>,
              &cuda::kernel<PreviousKernel<T, T>>, &cuda::kernel<AccumulateKernel<T>>, &cuda::kernel<HistoryKernel>});
  for (const Resident& resident : {plan.kernels.forward, plan.kernels.backward}) {
    if (resident.kernel) all.push_back(resident.kernel);
    if (resident.pack) all.push_back(resident.pack);
  }
  return all;
}

// The CUDA kernels that would run, and the reason, as JSON, from (T, B, n, nu, rho) and properties of the device
// (cuda/plan.h).
std::string relevancy_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes,
                           std::vector<int64_t> facts) {
  const int cell_id = find_cell(cell_list, cell);
  STD_TORCH_CHECK(sizes.size() == 5, "relevancy_plan: wants sizes (T, B, n, nu, rho)");
  STD_TORCH_CHECK(cell_id >= 0, "relevancy_recurrence: the cell `", cell, "` has no kernel");
  const Request request{cuda::facts_from("relevancy_plan", facts),
                        cell_id,
                        scalar_type(dtype),
                        {sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[3]}};
  const auto plan = plan_relevancy(request);
  const auto kernels =
      request.dtype == ScalarType::Double ? all_kernels<double>(plan, request) : all_kernels<float>(plan, request);
  return text("{\"forward\": \"", plan.name(), "\", \"backward\": \"", plan.name_of_backward(), "\", \"reason\": \"",
              plan.reason, "\", \"padded\": ", plan.kernels.padded, ", \"programs\": ", cuda::programs_of(kernels),
              "}");
}

}  // namespace

Plan plan_relevancy(const Request& request) {
  Plan plan = plan_block(request);
  // Weights that only fit in 16 bits are converted in every step.
  const bool widens = !plan.stepwise() && !table_of<float>(request.cell_id).block(request.sizes.hidden, 1, 0);
  if (plan.stepwise() || widens) {
    const Plan cluster = plan_cluster(request, widens ? most_waves_of_clusters : most_waves);
    if (cluster.stepwise() && !widens) return refused(plan.reason, ", and ", cluster.reason);
    if (!cluster.stepwise()) plan = cluster;
  }
  if (!plan.kernels.backward.kernel) plan.reason += ", backward they do not";
  return plan;
}

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, CompositeExplicitAutograd, m) {
  m.impl("relevancy_plan", TORCH_BOX(&relevancy_plan));
}

}  // namespace rnnkern::relevancy
