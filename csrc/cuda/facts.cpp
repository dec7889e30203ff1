#include "cuda/facts.h"

#include <map>

#include "cuda/alone.cuh"
#include "cuda/current.h"
#include "cuda/kernel.h"
#include "cuda/libcuda.h"
#include "cuda/modules.h"
#include "cuda/plan.h"

namespace rnnkern::cuda {
namespace {

// How many clusters of this size can run at once, if each block uses all shared memory.
int resident(int blocks, int64_t shared_bytes, void* stream) {
  void* const alone = function_of(kernel<AloneKernel>, stream);
  const Libcuda& cuda = libcuda();
  cuda.cuFuncSetAttribute(kernel<AloneKernel>.type, alone, FunctionAttribute::shared_bytes, int(shared_bytes));
  LaunchAttribute cluster{LaunchAttribute::cluster_dimension, {}, {.sizes = {unsigned(blocks), 1, 1}}};
  const LaunchConfig config{
      {unsigned(blocks), 1, 1}, {AloneKernel::threads, 1, 1}, unsigned(shared_bytes), nullptr, &cluster, 1};
  int found = 0;
  // A device that rejects such clusters runs none.
  if (blocks > 8 && cuda.cuFuncSetAttribute.attempt(alone, FunctionAttribute::clusters_above_8, 1)) return 0;
  return cuda.cuOccupancyMaxActiveClusters.attempt(&found, alone, &config) ? 0 : found;
}

Facts query(void* stream) {
  Facts facts{attribute_of_current_device(DeviceAttribute::major),
              attribute_of_current_device(DeviceAttribute::minor),
              attribute_of_current_device(DeviceAttribute::multiprocessors),
              attribute_of_current_device(DeviceAttribute::shared_bytes_per_block),
              {}};
  if (facts.major < 9) return facts;
  facts.clusters[0] = resident(8, facts.shared_bytes, stream);
  facts.clusters[1] = resident(16, facts.shared_bytes, stream);
  return facts;
}

}  // namespace

Facts facts_of_current(void* stream) {
  thread_local std::map<int, Facts> known;
  const int device = current_device();
  const auto found = known.find(device);
  return found != known.end() ? found->second : known[device] = query(stream);
}

}  // namespace rnnkern::cuda

namespace rnnkern {

std::string device_facts(int64_t index) {
  const CurrentDevice current(static_cast<int32_t>(index));
  const cuda::Facts facts = cuda::facts_of_current(current.stream());
  return cuda::text("[", facts.major, ", ", facts.minor, ", ", facts.multiprocessors, ", ", facts.shared_bytes, ", ",
                    facts.clusters[0], ", ", facts.clusters[1], "]");
}

}  // namespace rnnkern
