#include "cuda/facts.h"

#include <map>

#include "cuda/alone.cuh"
#include "cuda/current.h"
#include "cuda/driver.h"
#include "cuda/kernel.h"
#include "cuda/modules.h"
#include "cuda/plans.h"

namespace rnnkern::cuda {
namespace {

// How many clusters of this size can run at once, if each block uses all shared memory.
int resident(int blocks, int64_t shared_bytes, void* stream) {
  void* const alone = function_of(kernel<AloneKernel>, stream);
  const Driver& cuda = driver();
  cuda.cuFuncSetAttribute(kernel<AloneKernel>.type, alone, FunctionAttribute::shared_bytes, int(shared_bytes));
  LaunchAttribute cluster{LaunchAttribute::cluster_dimension, {}, {.sizes = {unsigned(blocks), 1, 1}}};
  const LaunchConfig config{
      {unsigned(blocks), 1, 1}, {AloneKernel::threads, 1, 1}, unsigned(shared_bytes), nullptr, &cluster, 1};
  int found = 0;
  // A device that rejects such clusters runs none.
  if (blocks > 8 && cuda.cuFuncSetAttribute.attempt(alone, FunctionAttribute::clusters_above_8, 1)) return 0;
  return cuda.cuOccupancyMaxActiveClusters.attempt(&found, alone, &config) ? 0 : found;
}

Facts ask(int device, void* stream) {
  const auto attribute = [device](DeviceAttribute what) {
    int value = 0;
    driver().cuDeviceGetAttribute("a device", &value, what, device);
    return value;
  };
  Facts facts{attribute(DeviceAttribute::major),
              attribute(DeviceAttribute::minor),
              attribute(DeviceAttribute::multiprocessors),
              attribute(DeviceAttribute::shared_bytes_per_block),
              {}};
  if (facts.major < 9) return facts;
  facts.clusters[0] = resident(8, facts.shared_bytes, stream);
  facts.clusters[1] = resident(16, facts.shared_bytes, stream);
  return facts;
}

}  // namespace

Facts facts_of_current(void* stream) {
  thread_local std::map<int, Facts> known;
  int device = 0;
  driver().cuCtxGetDevice("the current context", &device);
  const auto found = known.find(device);
  return found != known.end() ? found->second : known[device] = ask(device, stream);
}

}  // namespace rnnkern::cuda

namespace rnnkern {

std::string device_facts(int64_t index) {
  const CurrentDevice current(static_cast<int32_t>(index));
  const cuda::Facts facts = cuda::facts_of_current(current.stream());
  std::string json = "[";
  for (const int64_t fact : {int64_t(facts.major), int64_t(facts.minor), int64_t(facts.multiprocessors),
                             facts.shared_bytes, int64_t(facts.clusters[0]), int64_t(facts.clusters[1])}) {
    json += (json.size() > 1 ? ", " : "") + std::to_string(fact);
  }
  return json + "]";
}

}  // namespace rnnkern
