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

constexpr Named kernels[] = {
    named<Ids>("ids"),
    named<SharedMemory>("shared_memory"),
    named<BlockBarrier>("block_barrier"),
    named<WarpBarrier>("warp_barrier"),
    named<ClusterIds>("cluster_ids"),
    named<ClusterBarrier>("cluster_barrier"),
    named<MbarrierPhases>("mbarrier_phases"),
    named<StoreAsync<Word8>>("store_async_8"),
    named<StoreAsync<Word16>>("store_async_16"),
    named<Shuffle>("shuffle"),
    named<ShuffleXor>("shuffle_xor"),
    named<LoadMatrices<false>>("load_matrices"),
    named<LoadMatrices<true>>("load_matrices_transposed"),
    named<Mma<bfloat16>>("mma_bfloat16"),
    named<Mma<float16>>("mma_float16"),
    named<Mma<tfloat32>>("mma_tfloat32"),
    named<CopyAsync<4>>("copy_async_4"),
    named<CopyAsync<8>>("copy_async_8"),
    named<CopyAsync<16>>("copy_async_16"),
    named<RelaxedWords>("relaxed_words"),
    named<Flags>("flags"),
    named<Trap>("trap"),
    named<Spins>("spins"),
    named<Widen<bfloat16>>("widen_bfloat16"),
    named<Widen<float16>>("widen_float16"),
    named<Narrow<bfloat16>>("narrow_bfloat16"),
    named<Narrow<float16>>("narrow_float16"),
    named<NearestTfloat32>("nearest_tfloat32"),
};

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
