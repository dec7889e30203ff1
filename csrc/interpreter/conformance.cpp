// The conformance kernels by name: on the interpreter through ctypes; without RNNKERN_INTERPRET as an operator on a
// CUDA device, compiled and started like all kernels.
#include "interpreter/conformance.h"

#include "interpreter/harness.h"

#if !defined(RNNKERN_INTERPRET)
#include "cuda/current.h"
#include "cuda/plan.h"
#endif

namespace rnnkern::device {

using namespace conformance;

constexpr auto kernels =
    named<Ids, SharedMemory, BlockBarrier, WarpBarrier, ClusterIds, ClusterBarrier, MbarrierPhases, StoreAsync<Word8>,
          StoreAsync<Word16>, Shuffle, ShuffleXor, LoadMatrices<false>, LoadMatrices<true>, Mma<bfloat16>, Mma<float16>,
          Mma<tfloat32>, CopyAsync<4>, CopyAsync<8>, CopyAsync<16>, RelaxedWords, Flags, Trap, Spins, Widen<bfloat16>,
          Widen<float16>, Narrow<bfloat16>, Narrow<float16>, NearestTfloat32>;

}  // namespace rnnkern::device

#if defined(RNNKERN_INTERPRET)

extern "C" int run_conformance(const char* name, const uint32_t* in, int64_t in_words, uint32_t* out, int64_t out_words,
                               uint64_t seed, char* said, int64_t said_bytes) {
  using namespace rnnkern::device;
  return run_named(kernels, name, in, in_words, out, out_words, seed, said, said_bytes);
}

#else

namespace rnnkern {

// Words are int32 tensors.
void run_conformance(std::string name, Tensor given, Tensor out) {
  const CurrentDevice current(given);
  const device::Words words{read<uint32_t>(given), write<uint32_t>(out)};
  device::start(device::kernels, name, words, current.stream());
}

// In the form of cuda::programs_of.
std::string conformance_programs() {
  std::vector<const cuda::Kernel*> all;
  for (const device::Named& kernel : device::kernels) all.push_back(kernel.kernel);
  return cuda::programs_of(all);
}

STABLE_TORCH_LIBRARY(rnnkern_conformance, m) {
  m.def("run(str name, Tensor given, Tensor out) -> ()");
  m.def("programs() -> str");
}

STABLE_TORCH_LIBRARY_IMPL(rnnkern_conformance, CUDA, m) { m.impl("run", TORCH_BOX(&run_conformance)); }

STABLE_TORCH_LIBRARY_IMPL(rnnkern_conformance, CompositeExplicitAutograd, m) {
  m.impl("programs", TORCH_BOX(&conformance_programs));
}

}  // namespace rnnkern

#endif
