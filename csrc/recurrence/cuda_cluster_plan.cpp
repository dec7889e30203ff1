#include <algorithm>

#include "recurrence/cuda_plan.h"

namespace rnnkern {
namespace {

constexpr int64_t most_turns = 2;  // of clusters one after the other; then a step's product is large enough by itself

template <class M>
bool shapes(Plan& plan, int place, int size) {
  plan.forward = ClusterKernels<ClusterForward, M>::shape(place, size);
  plan.backward = ClusterKernels<ClusterBackward, M>::shape(place, size);
  return plan.forward.columns > 0;
}

}  // namespace

std::string refuse_cluster(Plan& plan, const device::Facts& facts, int place, ScalarType dtype, const Sizes& sizes) {
  const auto exists = [&](int size) {
    return plan.tf32                       ? shapes<device::tfloat32>(plan, place, size)
           : dtype == ScalarType::Float    ? shapes<float>(plan, place, size)
           : dtype == ScalarType::BFloat16 ? shapes<device::bfloat16>(plan, place, size)
                                           : shapes<device::float16>(plan, place, size);
  };
  const auto fits = std::find_if(std::begin(cluster_sizes), std::end(cluster_sizes),
                                 [&](int size) { return size >= sizes.hidden && exists(size); });
  const BlockShape forward = plan.forward, backward = plan.backward;
  plan.forward = plan.backward = {};
  if (facts.major < 9) return "clusters need compute capability 9.0";
  if (fits == std::end(cluster_sizes)) return "R outgrows a cluster";
  const std::string blocks = std::to_string(forward.cluster);
  const int64_t wanted = std::max(forward.shared_bytes, backward.shared_bytes);
  if (wanted > facts.shared_bytes) {
    return "a cluster needs " + std::to_string(wanted) + " bytes of shared memory per block, and here are " +
           std::to_string(facts.shared_bytes);
  }
  const int64_t resident = facts.resident(forward.cluster);
  if (resident == 0) return "no cluster of " + blocks + " blocks runs here";
  const int64_t most = most_turns * resident * std::max(forward.columns, backward.columns);
  if (sizes.batch > most) {
    return "B is above " + std::to_string(most) + ", what clusters take in " + std::to_string(most_turns) + " turns";
  }
  plan.padded = *fits;
  plan.forward = forward;
  plan.backward = backward;
  // Over all clusters before any has more: a step takes longer with each sequence.
  const int64_t each = std::max<int64_t>((sizes.batch + resident - 1) / resident, 1);
  plan.forward.columns = int(std::min<int64_t>(each, forward.columns));
  plan.backward.columns = int(std::min<int64_t>(each, backward.columns));
  return "";
}

}  // namespace rnnkern
