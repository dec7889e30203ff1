// The first n lanes of a vector in memory, for each type of element, at the SIMD level that test_simd_rows.py compiles
// this for. Prints what is wrong; a load or store that reaches beyond its row into memory that is not there crashes.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "cells/math.h"
#include "recurrence/cpu/includes.h"

#include "common/simd_target.h"

#include "common/simd.h"

#include "cpu/storage.h"

namespace rnnkern {
namespace {

int faults = 0;

// A page between two that may be neither read nor written.
struct Page {
  size_t size = sysconf(_SC_PAGESIZE);
  char* begin = nullptr;

  Page() {
    void* pages = mmap(nullptr, 3 * size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED) std::abort();
    begin = static_cast<char*>(pages) + size;
    if (mprotect(begin, size, PROT_READ | PROT_WRITE)) std::abort();
  }
};

// Calls of their own, so that n is a number that the compiler does not know.
template <class S>
[[gnu::noinline]] void load_row(const S* p, int64_t n, Arithmetic<S>* lanes) {
  load(p, n).store(lanes);
}

template <class S>
[[gnu::noinline]] void store_row(const Arithmetic<S>* lanes, S* p, int64_t n) {
  store(Vec<Arithmetic<S>>::load(lanes), p, n);
}

template <class T>
[[gnu::noinline]] void choose(int64_t n, T* lanes) {
  select(among_first<T>(n), Vec<T>(T(1)), Vec<T>(T(0))).store(lanes);
}

template <class S>
void check(const char* type, const Page& page) {
  using T = Arithmetic<S>;
  constexpr int64_t width = Vec<T>::width;
  constexpr char untouched = 0x5a;
  T numbers[width], lanes[width];
  S row[width];
  for (int64_t k = 0; k < width; ++k) numbers[k] = T(k + 1);
  store_row(numbers, row, width);

  for (int64_t n = -2 * width; n <= 2 * width; ++n) {
    const int64_t taken = larger(0, smaller(n, width)), bytes = sizeof(S) * taken;
    const auto expect = [&](bool right, const char* what) {
      if (!right) std::printf("%s, n = %d: %s\n", type, int(n), what), ++faults;
    };
    const auto are_first = [&] {
      bool right = true;
      for (int64_t k = 0; k < width; ++k) right = right && lanes[k] == (k < taken ? numbers[k] : T(0));
      return right;
    };

    // At each end of the page, then between bytes that are to stay as they are.
    char* const places[] = {page.begin, page.begin + page.size - bytes, page.begin + page.size / 2};
    for (char* const place : places) {
      S* const p = reinterpret_cast<S*>(place);
      std::memset(page.begin, untouched, page.size);
      std::memcpy(place, row, bytes);
      load_row(p, n, lanes);
      expect(are_first(), "a load has other lanes than the first n of memory, then zeros");

      std::memset(place, untouched, bytes);
      store_row(numbers, p, n);
      expect(std::memcmp(place, row, bytes) == 0, "a store does not write the first n lanes");
      bool same = true;
      for (char* at = page.begin; at < page.begin + page.size; ++at)
        same = same && ((at >= place && at < place + bytes) || *at == untouched);
      expect(same, "a store writes beyond the first n lanes");
    }
    if constexpr (std::is_same_v<S, T>) {
      if (n >= width) continue;
      choose(n, lanes);
      for (int64_t k = 0; k < width; ++k) lanes[k] *= numbers[k];
      expect(are_first(), "among_first() has other lanes than the first n");
    }
  }
}

}  // namespace
}  // namespace rnnkern

int main() {
  using namespace rnnkern;
  const Page page;
  check<float>("float32", page);
  check<double>("float64", page);
  check<device::float16>("float16", page);
  check<device::bfloat16>("bfloat16", page);
  return faults != 0;
}
