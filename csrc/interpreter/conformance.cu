// The conformance kernels by name: for the interpreter where a C++ compiler reads this, for hardware where nvcc does.
#include "interpreter/conformance.h"

#include "interpreter/harness.h"

namespace rnnkern::device {

using namespace conformance;

constexpr Named kernels[] = {
    {"ids", start<Ids>},
    {"shared_memory", start<SharedMemory>},
    {"block_barrier", start<BlockBarrier>},
    {"cluster_ids", start<ClusterIds>},
    {"cluster_barrier", start<ClusterBarrier>},
    {"mbarrier_phases", start<MbarrierPhases>},
    {"store_async_8", start<StoreAsync<Word8>>},
    {"store_async_16", start<StoreAsync<Word16>>},
    {"shuffle", start<Shuffle>},
    {"shuffle_xor", start<ShuffleXor>},
    {"load_matrices", start<LoadMatrices<false>>},
    {"load_matrices_transposed", start<LoadMatrices<true>>},
    {"mma_bfloat16", start<Mma<bfloat16>>},
    {"mma_float16", start<Mma<float16>>},
    {"mma_tfloat32", start<Mma<tfloat32>>},
    {"copy_async_4", start<CopyAsync<4>>},
    {"copy_async_8", start<CopyAsync<8>>},
    {"copy_async_16", start<CopyAsync<16>>},
    {"relaxed_words", start<RelaxedWords>},
    {"flags", start<Flags>},
    {"trap", start<Trap>},
    {"spins", start<Spins>},
    {"widen_bfloat16", start<Widen<bfloat16>>},
    {"widen_float16", start<Widen<float16>>},
    {"narrow_bfloat16", start<Narrow<bfloat16>>},
    {"narrow_float16", start<Narrow<float16>>},
    {"nearest_tfloat32", start<NearestTfloat32>},
};

}  // namespace rnnkern::device

extern "C" int run_conformance(const char* name, const uint32_t* in, int64_t in_words, uint32_t* out, int64_t out_words,
                               [[maybe_unused]] uint64_t seed, char* said, int64_t said_bytes) {
  using namespace rnnkern::device;
#if !defined(__CUDACC__)
  set_seed(seed);
#endif
  return run_named(kernels, name, in, in_words, out, out_words, said, said_bytes);
}
