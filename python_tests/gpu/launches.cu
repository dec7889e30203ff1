// What asks the CUDA runtime for something, for a test that has the runtime fail.
#include "cuda/facts.h"
#include "device/launch.h"

namespace {

struct Nothing {
  struct Problem {};
  static constexpr int threads = 32;
  RNNKERN_DEVICE static void run(const Problem&) {}
};

}  // namespace

namespace device = rnnkern::device;

// With all that a launch can ask for.
extern "C" int launch_kernel() {
  const device::Launch shape{.blocks = 16, .shared_bytes = 64 * 1024, .cluster = 16, .cooperative = true};
  return device::launch<Nothing>(shape, {}, nullptr);
}

extern "C" int launch_too_large() {
  return device::launch<Nothing>({.blocks = int64_t(1) << 40, .cooperative = true}, {}, nullptr);
}

// Of a device that was not asked for before: what is known is kept.
extern "C" int ask_facts() {
  static int index = 0;
  device::Facts facts;
  return device::facts_of(index++, facts);
}

extern "C" int ask_capturing() {
  bool captured;
  return device::capturing(nullptr, captured);
}
