#include "recurrence/cuda/plan.h"

#include "cuda/library.h"
#include "recurrence/call.h"
#include "recurrence/cuda/step.cuh"

namespace rnnkern {
namespace {

using cuda::refused, cuda::text;

constexpr int64_t least_chunk = 64;  // steps; each chunk starts kernels that load R again
constexpr int64_t least_cluster_chunk = 256;
constexpr int64_t most_size = INT32_MAX / 8;
constexpr int64_t most_hidden = int64_t(1) << 24;  // block kernels compute distances between sequences of a tile as int
constexpr int64_t rows_per_multiprocessor = 32;
constexpr int64_t max_waves = 2;  // of clusters; with more, a step's product is efficient by itself

int64_t parts(int64_t all, int64_t part) { return (all + part - 1) / part; }

// Whether the cell has kernels that keep R.
bool keeps_R(const Request& request) { return table_of<float>(request.cell).grid; }

// The kernels for the dtype of the call.
const KernelTable& kernels_of(const Request& request) {
  return *cuda::by_narrow_storage(request.dtype, [&]<class S>(S) { return &table_of<S>(request.cell); });
}

// The three functions below return a stepwise plan, with the reason, if their kernel cannot run the call.
Plan plan_block(const Request& request) {
  const cuda::Facts& facts = request.facts;
  const Sizes& sizes = request.sizes;
  if (!keeps_R(request)) return refused("this cell only has the stepwise kernel");
  if (request.noisy) return refused("zoneout and dropout have no block kernel");
  if (const std::string why = cuda::kernel_filter(KernelKind::block); !why.empty()) return refused(why);
  const int64_t d = sizes.hidden / sizes.heads;
  const Residents kernels = kernels_of(request).block(d);
  if (!kernels) return refused("heads of ", d, " units do not fit one block");
  if (request.dtype == ScalarType::Double) return refused("float64 has no block kernel");
  if (facts.major < 8) return refused("the block kernel needs compute capability 8.0");
  if (sizes.most() > most_size) return refused("sizes beyond 2^28 have no block kernel");
  if (sizes.hidden > most_hidden) return refused("H beyond 2^24 has no block kernel");
  if (kernels.shared_bytes() > facts.shared_bytes) {
    return refused("R needs ", kernels.shared_bytes(), " bytes of shared memory, and a block of this GPU has ",
                   facts.shared_bytes);
  }
  return {.kind = KernelKind::block, .reason = text("heads of ", d, " units stay on one block"), .kernels = kernels};
}

Plan plan_cluster(const Request& request) {
  const cuda::Facts& facts = request.facts;
  const int64_t batch = request.sizes.batch, hidden = request.sizes.hidden;
  if (const std::string why = cuda::kernel_filter(KernelKind::cluster); !why.empty()) return refused(why);
  if (facts.major < 9) return refused("clusters need compute capability 9.0");
  const bool tf32 = request.dtype == ScalarType::Float && request.allows_tf32();
  const KernelTable& table = tf32 ? table_of<device::tfloat32>(request.cell) : kernels_of(request);
  Residents kernels = table.cluster(hidden);
  if (!kernels) return refused("R is too large for a cluster");
  const int blocks = kernels.forward.cluster;
  if (kernels.shared_bytes() > facts.shared_bytes) {
    return refused("a cluster needs ", kernels.shared_bytes(), " bytes of shared memory per block, and the GPU has ",
                   facts.shared_bytes);
  }
  const int64_t resident = facts.resident(blocks);
  if (resident == 0) return refused("the GPU runs no cluster of ", blocks, " blocks");
  const int64_t most = max_waves * resident * std::max(kernels.forward.columns, kernels.backward.columns);
  if (batch > most)
    return refused("B is ", batch, ", and the clusters process at most ", most, " sequences in ", max_waves, " passes");
  // Use all clusters before giving any of them more sequences: a step takes longer with each sequence.
  const int64_t each = std::max<int64_t>(parts(batch, resident), 1);
  for (Resident* kernel : {&kernels.forward, &kernels.backward})
    kernel->columns = int(std::min<int64_t>(each, kernel->columns));
  return {.kind = KernelKind::cluster,
          .reason = text("R of ", hidden, " units stays on a cluster of ", blocks, " blocks",
                         tf32 ? ", in TF32 as torch.backends.cudnn.rnn.fp32_precision allows" : ""),
          .kernels = kernels,
          .tf32 = tf32};
}

// A member fills a multiprocessor: 256 threads with up to 255 registers, and its shared memory.
Plan plan_grid(const Request& request) {
  const cuda::Facts& facts = request.facts;
  const int64_t batch = request.sizes.batch, hidden = request.sizes.hidden;
  if (const std::string why = cuda::kernel_filter(KernelKind::grid); !why.empty()) return refused(why);
  const int64_t members = parts(hidden, units_of_member(request.dtype == ScalarType::Float ? 4 : 2));
  if (members > facts.multiprocessors)
    return refused(hidden, " units need ", members, " blocks at once, and the GPU runs ", facts.multiprocessors);
  const int64_t tiles = parts(batch, grid_columns), groups = facts.multiprocessors / members;
  const int64_t sets = parts(tiles, groups);
  if (sets > most_grid_sets) {
    return refused(batch, " sequences are more than the ", groups * most_grid_sets * grid_columns,
                   " that the grid kernel processes on this GPU");
  }
  const Residents kernels = kernels_of(request).grid({int(members), int(sets ? parts(tiles, sets) : 1), int(sets)});
  if (kernels.shared_bytes() > facts.shared_bytes) {
    return refused("a block's share of R needs ", kernels.shared_bytes(),
                   " bytes of shared memory, and a block of this GPU has ", facts.shared_bytes);
  }
  return {.kind = KernelKind::grid,
          .reason = text("R of ", hidden, " units stays on ", members, " blocks"),
          .kernels = kernels};
}

Plan choose(const Request& request) {
  const Plan block = plan_block(request);
  const Sizes& sizes = request.sizes;
  const bool dense = keeps_R(request) && sizes.heads == 1 && !request.noisy && request.dtype != ScalarType::Double &&
                     request.facts.major >= 8 && sizes.most() <= most_size;
  if (!block.stepwise() || !dense) return block;
  const Plan cluster = plan_cluster(request);
  if (!cluster.stepwise()) return cluster;
  const Plan grid = plan_grid(request);
  return grid.stepwise() ? refused(block.reason, ", and ", cluster.reason, ", and ", grid.reason) : grid;
}

// All kernels that a call with this plan starts, forward and backward, whose state is stored as S: the pointwise ones
// of the stepwise kernel, of which the backward also uses some with a kernel that keeps R; and that kernel.
template <class S>
std::vector<const cuda::Kernel*> all_kernels(const Plan& plan, const Request& request) {
  using A = Arithmetic<S>;
  const auto& [exact, noisy] = table_of<S>(request.cell).steps;
  const StepKernels& steps = request.noisy ? noisy : exact;
  std::vector<const cuda::Kernel*> all{steps.forward, steps.backward, &cuda::kernel<PreviousKernel<S, S>>,
                                       &cuda::kernel<AccumulateKernel<S>>};
  const auto add = [&](std::initializer_list<const cuda::Kernel*> more) { all.insert(all.end(), more); };
  if (narrow<S>) add({&cuda::kernel<AccumulateKernel<A>>});
  if (narrow<S> && request.cell.kernels && request.cell.info.states > 1) add({&cuda::kernel<PreviousKernel<S, A>>});
  // Without noise the backward recomputes the gates.
  if (request.noisy) add({exact.forward, &cuda::kernel<MaskKernel<S>>, &cuda::kernel<DropKernel<S>>});
  if (request.cell.info.projected) add({steps.projected, steps.projected_backward});
  if (!plan.stepwise()) add({plan.kernels.forward.kernel, plan.kernels.backward.kernel});
  return all;
}

// The launch plan of a call on a CUDA device, as JSON. Arguments: sizes (T, B, H, K); properties of the device
// (cuda/plan.h), of which the numbers of clusters may be omitted; whether there is zoneout or dropout; and whether TF32
// is allowed.
std::string recurrence_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes, std::vector<int64_t> facts,
                            bool noisy, bool tf32) {
  const KnownCell known = known_cell(cell, 0);
  STD_TORCH_CHECK(known.cell_id >= 0 && sizes.size() == 4 && sizes[3] > 0 && sizes[2] % sizes[3] == 0,
                  "recurrence_plan: wants a cell with a kernel, and sizes (T, B, H, K)");
  const Request request{.facts = cuda::facts_from("recurrence_plan", facts),
                        .cell = known,
                        .dtype = scalar_type(dtype),
                        .sizes = {sizes[0], sizes[1], sizes[2], sizes[3]},
                        .noisy = noisy,
                        .allows_tf32 = tf32 ? +[] { return true; } : +[] { return false; }};
  const Plan plan = plan_recurrence(request);
  const auto kernels = by_storage(request.dtype, [&]<class S>(S) { return all_kernels<S>(plan, request); });
  const auto shape = [&](const char* name, const Resident& x) {
    const int64_t blocks = x.kernel ? x.launch(sizes[1], sizes[3]).blocks : 0;
    return text(", \"", name, "\": {\"blocks\": ", blocks, ", \"threads\": ", x.kernel ? x.kernel->threads : 0,
                ", \"columns\": ", x.columns, ", \"shared_bytes\": ", x.shared_bytes, ", \"cluster\": ", x.cluster,
                "}");
  };
  return text("{\"kernel\": \"", plan.name(), "\", \"reason\": \"", plan.reason,
              "\", \"padded\": ", plan.kernels.padded, ", \"chunk_steps\": ", plan.chunk_steps,
              shape("forward", plan.kernels.forward), shape("backward", plan.kernels.backward),
              ", \"programs\": ", cuda::programs_of(kernels), "}");
}

}  // namespace

Plan plan_recurrence(const Request& request) {
  Plan plan = choose(request);
  const int64_t at_once = rows_per_multiprocessor * request.facts.multiprocessors;
  plan.chunk_steps = std::max(plan.kind == KernelKind::cluster ? least_cluster_chunk : least_chunk,
                              at_once / std::max<int64_t>(request.sizes.batch, 1));
  return plan;
}

STABLE_TORCH_LIBRARY_IMPL(RNNKERN_LIBRARY, CompositeExplicitAutograd, m) {
  m.impl("recurrence_plan", TORCH_BOX(&recurrence_plan));
}

}  // namespace rnnkern
