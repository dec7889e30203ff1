// Launches are checked against the device that tests pretend to have.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <string>

#include "cuda/facts.h"
#include "interpreter/primitives.h"

namespace rnnkern::device {

// Refuses what the driver would refuse on the pretended device. How many blocks a multiprocessor runs also depends on
// their registers, so that hardware may refuse more.
inline void check_launch(const Shape& shape) {
  const auto refuse = [](const std::string& why) { throw std::runtime_error("interpret: " + why); };
  const auto number = [](int64_t n) { return std::to_string(n); };
  const cuda::Facts& facts = pretended();
  if (shape.threads <= 0 || shape.threads > 1024 || shape.threads % warp_size) {
    refuse("a block has whole warps and at most 1024 threads, not " + number(shape.threads));
  }
  if (shape.cluster < 1 || shape.blocks % shape.cluster) {
    refuse(number(shape.blocks) + " blocks are not clusters of " + number(shape.cluster));
  }
  if (shape.shared_bytes > facts.shared_bytes) {
    refuse("a block has at most " + number(facts.shared_bytes) + " bytes of shared memory, not " +
           number(shape.shared_bytes));
  }
  if (shape.cluster > 1 && (shape.cluster > 16 || facts.major < 9 || facts.resident(shape.cluster) == 0)) {
    refuse("no cluster of " + number(shape.cluster) + " blocks runs on this device");
  }
  constexpr int64_t reserved = 1024, most_threads_at_once = 2048, most_blocks_at_once = 32;
  const int64_t each = std::min({most_blocks_at_once, most_threads_at_once / shape.threads,
                                 (facts.shared_bytes + reserved) / (shape.shared_bytes + reserved)});
  if (shape.cooperative && shape.blocks > each * facts.multiprocessors) {
    refuse(number(shape.blocks) + " blocks are to run at once, and this device runs " +
           number(each * facts.multiprocessors));
  }
}

}  // namespace rnnkern::device
