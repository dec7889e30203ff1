#include "recurrence/cuda/plan.h"

#include <sstream>

#include "recurrence/call.h"
#include "recurrence/cuda/step_projected.cuh"
#include "recurrence/recurrence.h"

namespace rnnkern {
namespace {

constexpr int64_t least_chunk = 64;  // steps; each chunk starts kernels that load R again
constexpr int64_t least_cluster_chunk = 256;
constexpr int64_t most_size = INT32_MAX / 8;
constexpr int64_t most_hidden = int64_t(1) << 24;  // block kernels compute distances between sequences of a tile as int
constexpr int64_t rows_per_multiprocessor = 32;
constexpr int64_t max_waves = 2;  // of clusters; with more, a step's product is efficient by itself

int64_t parts(int64_t all, int64_t part) { return (all + part - 1) / part; }

Plan refused(std::string why) { return {.reason = std::move(why)}; }

// Whether the cell has kernels that keep R.
bool keeps_R(const Wanted& wanted) { return table_of<float>(wanted.cell).grid; }

// The three functions below return a stepwise plan, with the reason, if their kernel cannot run the call.
Plan plan_block(const Wanted& wanted) {
  const cuda::Facts& facts = wanted.facts;
  const Sizes& sizes = wanted.sizes;
  if (!keeps_R(wanted)) return refused("this cell only has the stepwise kernel");
  if (wanted.noisy) return refused("zoneout and dropout have no block kernel");
  if (const std::string why = cuda::kernel_filter(KernelKind::block); !why.empty()) return refused(why);
  const int64_t d = sizes.hidden / sizes.heads;
  const auto kernels_of = [&](int size) {
    return cuda::by_narrow_storage(wanted.dtype, [&]<class S>(S) { return table_of<S>(wanted.cell).block(size); });
  };
  const int padded = BlockSizes::least(d, [&](int size) { return kernels_of(size).forward.kernel != nullptr; });
  if (padded == 0) return refused("heads of " + std::to_string(d) + " units do not fit one block");
  if (wanted.dtype == ScalarType::Double) return refused("float64 has no block kernel");
  if (facts.major < 8) return refused("the block kernel needs compute capability 8.0");
  if (sizes.most() > most_size) return refused("sizes beyond 2^28 have no block kernel");
  if (sizes.hidden > most_hidden) return refused("H beyond 2^24 has no block kernel");
  const Residents kernels = kernels_of(padded);
  if (kernels.shared_bytes() > facts.shared_bytes) {
    return refused("R needs " + std::to_string(kernels.shared_bytes()) +
                   " bytes of shared memory, and a block of this GPU has " + std::to_string(facts.shared_bytes));
  }
  return {.kind = KernelKind::block,
          .reason = "heads of " + std::to_string(d) + " units stay on one block",
          .kernels = kernels,
          .padded = padded};
}

Plan plan_cluster(const Wanted& wanted) {
  const cuda::Facts& facts = wanted.facts;
  const int64_t batch = wanted.sizes.batch, hidden = wanted.sizes.hidden;
  if (const std::string why = cuda::kernel_filter(KernelKind::cluster); !why.empty()) return refused(why);
  const bool tf32 = wanted.dtype == ScalarType::Float && wanted.allows_tf32();
  const auto kernels_of = [&](int size) {
    if (tf32) return table_of<device::tfloat32>(wanted.cell).cluster(size);
    return cuda::by_narrow_storage(wanted.dtype, [&]<class S>(S) { return table_of<S>(wanted.cell).cluster(size); });
  };
  if (facts.major < 9) return refused("clusters need compute capability 9.0");
  const int padded = ClusterSizes::least(hidden, [&](int size) { return kernels_of(size).forward.kernel != nullptr; });
  if (padded == 0) return refused("R is too large for a cluster");
  Residents kernels = kernels_of(padded);
  const std::string blocks = std::to_string(kernels.forward.cluster);
  if (kernels.shared_bytes() > facts.shared_bytes) {
    return refused("a cluster needs " + std::to_string(kernels.shared_bytes()) +
                   " bytes of shared memory per block, and the GPU has " + std::to_string(facts.shared_bytes));
  }
  const int64_t resident = facts.resident(kernels.forward.cluster);
  if (resident == 0) return refused("the GPU runs no cluster of " + blocks + " blocks");
  const int64_t most = max_waves * resident * std::max(kernels.forward.columns, kernels.backward.columns);
  if (batch > most) {
    return refused("B is " + std::to_string(batch) + ", and the clusters process at most " + std::to_string(most) +
                   " sequences in " + std::to_string(max_waves) + " passes");
  }
  // Use all clusters before giving any of them more sequences: a step takes longer with each sequence.
  const int64_t each = std::max<int64_t>(parts(batch, resident), 1);
  for (Resident* kernel : {&kernels.forward, &kernels.backward})
    kernel->columns = int(std::min<int64_t>(each, kernel->columns));
  return {.kind = KernelKind::cluster,
          .reason = "R of " + std::to_string(hidden) + " units stays on a cluster of " + blocks + " blocks" +
                    (tf32 ? ", in TF32 as torch.backends.cudnn.rnn.fp32_precision allows" : ""),
          .kernels = kernels,
          .padded = padded,
          .tf32 = tf32};
}

// A member fills a multiprocessor: 256 threads with up to 255 registers, and its shared memory.
Plan plan_grid(const Wanted& wanted) {
  const cuda::Facts& facts = wanted.facts;
  const int64_t batch = wanted.sizes.batch, hidden = wanted.sizes.hidden;
  if (const std::string why = cuda::kernel_filter(KernelKind::grid); !why.empty()) return refused(why);
  const int64_t members = parts(hidden, units_of_member(wanted.dtype == ScalarType::Float ? 4 : 2));
  if (members > facts.multiprocessors) {
    return refused(std::to_string(hidden) + " units need " + std::to_string(members) +
                   " blocks at once, and the GPU runs " + std::to_string(facts.multiprocessors));
  }
  const int64_t tiles = parts(batch, grid_columns), groups = facts.multiprocessors / members;
  const int64_t sets = parts(tiles, groups);
  if (sets > most_grid_sets) {
    return refused(std::to_string(batch) + " sequences are more than the " +
                   std::to_string(groups * most_grid_sets * grid_columns) +
                   " that the grid kernel processes on this GPU");
  }
  const GridSize size{int(members), int(sets ? parts(tiles, sets) : 1), int(sets)};
  const Residents kernels =
      cuda::by_narrow_storage(wanted.dtype, [&]<class S>(S) { return table_of<S>(wanted.cell).grid(size); });
  if (kernels.shared_bytes() > facts.shared_bytes) {
    return refused("a block's share of R needs " + std::to_string(kernels.shared_bytes()) +
                   " bytes of shared memory, and a block of this GPU has " + std::to_string(facts.shared_bytes));
  }
  return {.kind = KernelKind::grid,
          .reason = "R of " + std::to_string(hidden) + " units stays on " + std::to_string(members) + " blocks",
          .kernels = kernels,
          .grid = size};
}

// The part of a reason that says where torch.nn measured faster. A speed of 0 means that torch.nn lacks the cell.
std::string beside_torch(const Measured& row) {
  const auto slower = [](double times) { return times > 0 && times < 1; };
  if (!slower(row.forward) && !slower(row.both)) return "";
  std::ostringstream said;
  said << ", slower than torch.nn: measured at H = " << row.hidden << " and B = " << row.batch << ", " << row.forward
       << " times its speed forward, " << row.both << " with the backward";
  return said.str();
}

// The first kernel that can run the call. `row` is the measurement for such calls, or null. Measurements are of exact
// products, so `row` becomes null if TF32 is allowed.
Plan choose(const Wanted& wanted, const Measured*& row) {
  const Plan block = plan_block(wanted);
  const Sizes& sizes = wanted.sizes;
  const bool dense = keeps_R(wanted) && sizes.heads == 1 && !wanted.noisy && wanted.dtype != ScalarType::Double &&
                     wanted.facts.major >= 8 && sizes.most() <= most_size;
  if (!block.stepwise() || !dense) return block;
  if (row && wanted.dtype == ScalarType::Float && wanted.allows_tf32()) row = nullptr;
  const Plan cluster = plan_cluster(wanted);
  const bool to_grid = row && row->kernel == "grid";
  if (!cluster.stepwise() && !to_grid) return cluster;
  Plan grid = plan_grid(wanted);
  if (cluster.stepwise() && grid.stepwise())
    return refused(block.reason + ", and " + cluster.reason + ", and " + grid.reason);
  if (grid.stepwise()) return cluster;
  if (!cluster.stepwise()) grid.reason += ", which measured faster than a cluster of blocks";
  return grid;
}

// All kernels that a call with this plan starts, forward and backward, whose state is stored as S: the pointwise ones
// of the stepwise kernel, of which the backward also uses some with a kernel that keeps R; and that kernel.
template <class S>
std::vector<const cuda::Kernel*> all_kernels(const Plan& plan, const Wanted& wanted) {
  using A = Arithmetic<S>;
  const StepTable& steps = table_of<S>(wanted.cell).steps;
  const bool noisy = wanted.noisy;
  std::vector<const cuda::Kernel*> all{steps.forward[noisy], steps.backward[noisy], &cuda::kernel<PreviousKernel<S, S>>,
                                       &cuda::kernel<AccumulateKernel<S>>};
  const auto add = [&](const cuda::Kernel& kernel) { all.push_back(&kernel); };
  if (narrow<S>) add(cuda::kernel<AccumulateKernel<A>>);
  if (narrow<S> && wanted.cell.kernels && wanted.cell.info.states > 1) add(cuda::kernel<PreviousKernel<S, A>>);
  if (noisy) {
    add(*steps.forward[false]);  // recomputes the gates in the backward
    add(cuda::kernel<MaskKernel<S>>);
    add(cuda::kernel<DropKernel<S>>);
  }
  if (wanted.cell.info.projected) {
    add(noisy ? cuda::kernel<StepProjectedKernel<S, true>> : cuda::kernel<StepProjectedKernel<S, false>>);
    add(noisy ? cuda::kernel<StepProjectedBackwardKernel<S, true>>
              : cuda::kernel<StepProjectedBackwardKernel<S, false>>);
  }
  if (!plan.stepwise()) all.insert(all.end(), {plan.kernels.forward.kernel, plan.kernels.backward.kernel});
  return all;
}

std::string quoted(const std::string& key, const std::string& value) { return "\"" + key + "\": \"" + value + "\""; }

}  // namespace

Plan plan_recurrence(const Wanted& wanted, const std::vector<Measured>& rows) {
  const Sizes& sizes = wanted.sizes;
  const Measured* row = nullptr;
  if (sizes.heads == 1 && !wanted.noisy)
    row = find_measured(rows, wanted.facts.major, wanted.cell.cell_id, wanted.dtype, sizes.hidden, sizes.batch);
  Plan plan = choose(wanted, row);
  if (row && row->kernel == plan.name()) plan.reason += beside_torch(*row);
  const int64_t at_once = rows_per_multiprocessor * wanted.facts.multiprocessors;
  plan.chunk_steps = std::max(plan.kind == KernelKind::cluster ? least_cluster_chunk : least_chunk,
                              at_once / std::max<int64_t>(sizes.batch, 1));
  return plan;
}

std::string recurrence_plan(std::string cell, std::string dtype, std::vector<int64_t> sizes, std::vector<int64_t> facts,
                            bool noisy, bool tf32, std::string rows) {
  const KnownCell known = known_cell(cell, 0);
  STD_TORCH_CHECK(known.cell_id >= 0 && sizes.size() == 4 && sizes[3] > 0 && sizes[2] % sizes[3] == 0,
                  "recurrence_plan: wants a cell with a kernel, and sizes (T, B, H, K)");
  const Wanted wanted{.facts = cuda::facts_from("recurrence_plan", facts),
                      .cell = known,
                      .dtype = scalar_type(dtype),
                      .sizes = {sizes[0], sizes[1], sizes[2], sizes[3]},
                      .noisy = noisy,
                      .allows_tf32 = tf32 ? +[] { return true; } : +[] { return false; }};
  const Plan plan = plan_recurrence(wanted, rows.empty() ? measured() : read_measured(rows));
  const auto kernels = by_storage(wanted.dtype, [&]<class S>(S) { return all_kernels<S>(plan, wanted); });
  const auto shape = [&](const char* name, const Resident& x) {
    const int64_t tiles = x.columns ? parts(sizes[1], x.columns) * sizes[3] : 0;
    const int64_t blocks = plan.kind == KernelKind::grid ? plan.grid.blocks() : tiles * x.cluster;
    return std::string(", \"") + name + "\": {\"blocks\": " + std::to_string(blocks) +
           ", \"threads\": " + std::to_string(x.kernel ? x.kernel->threads : 0) +
           ", \"columns\": " + std::to_string(x.columns) + ", \"shared_bytes\": " + std::to_string(x.shared_bytes) +
           ", \"cluster\": " + std::to_string(x.cluster) + "}";
  };
  return "{" + quoted("kernel", plan.name()) + ", " + quoted("reason", plan.reason) +
         ", \"padded\": " + std::to_string(plan.padded) + ", \"chunk_steps\": " + std::to_string(plan.chunk_steps) +
         shape("forward", plan.kernels.forward) + shape("backward", plan.kernels.backward) +
         ", \"programs\": " + cuda::programs_of(kernels) + "}";
}

}  // namespace rnnkern
