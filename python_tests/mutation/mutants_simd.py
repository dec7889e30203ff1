"""Mutants of the loads and stores that end rows which are no whole vector long, each at the level that has them."""

from functools import partial

from python_tests.mutation.mutant import SIMD_ROWS, Mutant, named

avx2 = partial(Mutant, level="avx2")
avx512 = partial(Mutant, level="avx512")
amx = partial(Mutant, level="amx")
ON_AVX2, ON_AVX512 = named("avx2", SIMD_ROWS), named("avx512", SIMD_ROWS)
IN_TILES = named("rounded and (tanh- or lstm-)", "python_tests/ops/test_tiles.py")
OF_BFLOAT16 = named("bfloat16_products_take")
OF_SETTING = named("four or setting", "python_tests/ops/test_tiles.py")

SIMD = [
    # ---- masks
    avx2("common/simd.h", "return numbered<T>() < ", "return numbered<T>() <= ", "a lane after the first n", ON_AVX2),
    avx2("common/simd.h", "of[lane] = lane;", "of[lane] = lane / 2;", "the numbers of the lanes", ON_AVX2),
    avx2("common/simd.h", "return n >= width ? load(p)", "return n >= width - 1 ? load(p)",
         "a vector read for a part", ON_AVX2),
    avx2("common/simd.h", "if (n >= width) return store(p);", "if (n >= width - 1) return store(p);",
         "a vector written for a part", ON_AVX2),
    avx2("recurrence/cpu/normalised.h", "select(among_first<T>(lanes), x, Vec<T>(T(0)))", "x",
         "lanes beyond a row in its variance", named("float64_agrees and layer_norm")),
    # ---- AVX2
    avx2("common/simd.h", "_mm256_maskload_ps(p, (__m256i)among_first<T>(n))", "_mm256_loadu_ps(p)",
         "the mask of a load of float32", ON_AVX2),
    avx2("common/simd.h", "_mm256_maskload_pd(p, (__m256i)among_first<T>(n))", "_mm256_loadu_pd(p)",
         "the mask of a load of float64", ON_AVX2),
    avx2("common/simd.h", "_mm256_maskstore_ps(p, (__m256i)among_first<T>(n), v)", "_mm256_storeu_ps(p, v)",
         "the mask of a store of float32", ON_AVX2),
    avx2("common/simd.h", "_mm256_maskstore_pd(p, (__m256i)among_first<T>(n), v)", "_mm256_storeu_pd(p, v)",
         "the mask of a store of float64", ON_AVX2),
    avx2("common/simd.h", "_mm256_maskstore_pd(p, (__m256i)among_first<T>(n), v)",
         "_mm256_maskstore_pd(p, (__m256i)among_first<T>(n - 1), v)", "the last lane of a store of float64",
         named("float64_agrees and lstm-")),
    avx2("cpu/storage.h", "if (!(n & 4)) return (Words)Fours{rest, 0};", "",
         "that fewer than four lanes of 16 bits may be there", ON_AVX2),
    avx2("cpu/storage.h", "std::memcpy(&two, p + (n & 4), sizeof two);",
         "std::memcpy(&two, p, sizeof two);", "which two lanes of 16 bits are read", ON_AVX2),
    avx2("cpu/storage.h", "rest >>= 32;", "", "which lane of 16 bits is written last", ON_AVX2),
    # ---- AVX-512
    avx512("common/simd.h", "_mm512_cmplt_epi32_mask", "_mm512_cmple_epi32_mask",
           "a lane of float32 after the first n", ON_AVX512),
    avx512("common/simd.h", "_mm512_cmplt_epi64_mask", "_mm512_cmple_epi64_mask",
           "a lane of float64 after the first n", ON_AVX512),
    avx512("common/simd.h", "_mm512_maskz_loadu_ps(first_mask<T>(n), p)", "_mm512_loadu_ps(p)",
           "the mask of a load of float32", ON_AVX512),
    avx512("common/simd.h", "_mm512_maskz_loadu_pd(first_mask<T>(n), p)", "_mm512_loadu_pd(p)",
           "the mask of a load of float64", ON_AVX512),
    avx512("common/simd.h", "_mm512_mask_storeu_ps(p, first_mask<T>(n), v)", "_mm512_storeu_ps(p, v)",
           "the mask of a store of float32", ON_AVX512),
    avx512("common/simd.h", "_mm512_mask_storeu_pd(p, first_mask<T>(n), v)", "_mm512_storeu_pd(p, v)",
           "the mask of a store of float64", ON_AVX512),
    avx512("cpu/storage.h", "_mm256_maskz_loadu_epi16(first_mask<float>(n), p)",
           "_mm256_loadu_si256((const __m256i*)p)", "the mask of a load of 16 bits", ON_AVX512),
    avx512("cpu/storage.h", "_mm256_mask_storeu_epi16(p, first_mask<float>(n), (__m256i)x)",
           "_mm256_storeu_si256((__m256i*)p, (__m256i)x)", "the mask of a store of 16 bits", ON_AVX512),
    # ---- AMX
    amx("cpu/tiles.h", "return part ? to_bfloat16(x - as_floats(bits << 16)) : bits;", "return bits;",
        "the second part of a factor", IN_TILES),
    amx("cpu/tiles.h", "(product == 2 ? left.part : 0)", "0", "that the left factor has parts", IN_TILES),
    amx("cpu/tiles.h", "(product == 0 ? right_part : 0)", "0", "that the right factor has parts", IN_TILES),
    amx("cpu/tiles.h", "for (int64_t b = row0 + 1; in_place && b < row1; ++b)",
        "for (int64_t b = row0 + 1; false && b < row1; ++b)",
        "that rows at other distances are copied", named("reset", "python_tests/ops/test_tiles.py")),
    amx("cpu/tiles.h", "bool in_place = depth == length;", "bool in_place = true;",
        "that rows which are no whole tiles are copied", OF_BFLOAT16),
    amx("cpu/weight_gradient.h", "return row < count_ ?", "return true ?", "zeros after the last row of a block",
        IN_TILES),
    amx("cpu/weight_gradient.h", "std::memset(row_in_tiles(head, v, pair, part), 0, sizeof(T) * lanes);", ";",
        "zeros after the last pair of a block", IN_TILES),
    amx("recurrence/cpu/call.h", "|| call.steps.batch < least_rows", "", "that few sequences stay exact",
        OF_SETTING),
    amx("rnnkern/ops/_recurrence/autograd.py", "\"params\" in wanted, how[0],", "\"params\" in wanted, 0,",
        "the setting of a call in its backward pass", OF_SETTING),
]  # fmt: skip
