// The CPU kernels without torch, on std::thread: every cell, forward and backward, alone and by teams of several sizes,
// sharing out sequences and hidden units. Prints what differs between teams; a thread sanitizer reports what races.
#include <cstdio>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "recurrence/cells.h"
#include "recurrence/problem.h"

namespace rnnkern {
namespace {

using Values = std::vector<float>;

constexpr int64_t steps = 9, batch = 13, hidden = 48;

template <class S>
struct Result {
  std::vector<S> h, du;
  Values final_state[2], dstate[2];

  bool operator==(const Result& other) const {
    auto same = [](const auto& a, const auto& b) {
      return std::memcmp(a.data(), b.data(), sizeof(a[0]) * a.size()) == 0;
    };
    return same(h, other.h) && same(final_state[0], other.final_state[0]) && same(du, other.du) &&
           same(final_state[1], other.final_state[1]) && same(dstate[0], other.dstate[0]) &&
           same(dstate[1], other.dstate[1]);
  }
};

template <class Problem>
void team(void (*kernel)(const Problem&, Member), const Problem& problem, int size) {
  Barrier barrier;
  std::vector<std::thread> others;
  for (int rank = 1; rank < size; ++rank) {
    others.emplace_back([&, rank] { kernel(problem, Member{rank, size, &barrier}); });
  }
  kernel(problem, Member{0, size, &barrier});
  for (std::thread& other : others) other.join();
}

template <class S>
Result<S> run(const Kernels<S>& kernels, int place, int64_t heads, bool packed, int size, bool split_hidden) {
  const CellInfo& cell = cell_list[place];
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  auto draw = [&](int64_t elements, float scale = 1) {
    Values values(elements);
    for (float& x : values) x = scale * normal(random);
    return values;
  };
  std::vector<int64_t> sizes, offsets;
  int64_t rows = 0;
  for (int64_t t = 0; t < steps; ++t) {
    sizes.push_back(packed ? batch - t : batch);
    offsets.push_back(rows);
    rows += sizes.back();
  }
  auto stored = [&](int64_t elements) {
    std::vector<S> values;
    for (const float x : draw(elements)) values.push_back(device::narrow<S>(x));
    return values;
  };
  const int64_t columns = cell.gates * hidden, d = hidden / heads;
  const std::vector<S> u = stored(rows * columns), grad_h = stored(rows * hidden), h0 = stored(batch * hidden);
  const Values R = draw(columns * d, 0.1f), bias = draw(columns), params = draw(hidden, 0.1f);
  const Values state[2] = {draw(batch * hidden), draw(batch * hidden)};
  Values carried(2 * batch * hidden);
  Result<S> result;
  result.h.resize(rows * hidden);
  result.du.resize(rows * columns);
  for (int s = 0; s < 2; ++s) {
    result.final_state[s].resize(batch * hidden);
    result.dstate[s].resize(batch * hidden);
  }
  Values cells(rows * hidden), saved(rows * hidden * (cell.saved + 1)), dr(steps * batch * columns),
      zeros(zeros_size(hidden));
  Values workspace(kernels.packed_size(hidden, heads, cell.gates)), operand(steps * batch * hidden), dR(R.size());
  Values dparams(2 * batch * hidden), dbias(size * 2 * columns);
  Values parts(size * kernels.gradient_size(hidden, heads, cell.gates));

  Forward<S> f{};
  f.steps = {steps, batch, packed ? sizes.data() : nullptr, packed ? offsets.data() : nullptr, false};
  f.weights = {hidden, heads, R.data(), bias.data(), {params.data(), params.data()}};
  f.split_hidden = split_hidden;
  f.u = u.data();
  f.h = result.h.data();
  f.carried = narrow<S> ? carried.data() : nullptr;
  f.cell_states = cell.states > 1 ? cells.data() : nullptr;
  f.saved = saved.data();
  f.keep_saved = cell.saved > 0;
  f.packed = workspace.data();
  f.operand = operand.data();
  f.zeros = zeros.data();
  Backward<S> b{};
  b.steps = f.steps;
  b.weights = f.weights;
  b.split_hidden = split_hidden;
  b.h0 = h0.data();
  b.c0 = state[1].data();
  b.h = f.h;
  b.cell_states = f.cell_states;
  b.saved = f.saved;
  b.grad_h = grad_h.data();
  b.du = result.du.data();
  b.dr = dr.data();
  if constexpr (!narrow<S>) b.dr = cell.joint ? b.du : dr.data();
  b.slots = steps;
  b.dbias = dbias.data();
  b.dR = dR.data();
  b.dR_parts = parts.data();
  b.operand = operand.data();
  b.packed = workspace.data();
  b.zeros = zeros.data();
  for (int s = 0; s < cell.states; ++s) {
    f.state[s] = state[s].data();
    f.final_state[s] = result.final_state[s].data();
    b.dstate[s] = result.dstate[s].data();
    b.dparams[s] = dparams.data() + s * batch * hidden;
  }
  team(kernels.forward[place], f, size);
  team(kernels.backward[place], b, size);
  return result;
}

}  // namespace
}  // namespace rnnkern

namespace rnnkern {
namespace {

template <class S>
int compare(const Kernels<S>& kernels, const char* storage) {
  int wrong = 0;
  for (size_t place = 0; place < sizeof cell_list / sizeof *cell_list; ++place) {
    for (const int64_t heads : {1, 3}) {
      for (const bool packed : {false, true}) {
        const Result<S> alone = run(kernels, int(place), heads, packed, 1, false);
        for (const int size : {2, 3, 5}) {
          for (const bool split_hidden : {false, true}) {
            if (run(kernels, int(place), heads, packed, size, split_hidden) == alone) continue;
            std::printf("%s %s: heads %d, packed %d: a team of %d differs, split_hidden %d\n", cell_list[place].name,
                        storage, int(heads), packed, size, split_hidden);
            ++wrong;
          }
        }
      }
    }
  }
  return wrong;
}

}  // namespace
}  // namespace rnnkern

int main(int count, char** arguments) {
  using namespace rnnkern;
  Level level = level_plain();
#if defined(__x86_64__)
  if (count > 1 && !std::strcmp(arguments[1], "avx2")) level = level_avx2();
  if (count > 1 && !std::strcmp(arguments[1], "avx512")) level = level_avx512();
#endif
  const int wrong = compare(level.f32, "float32") + compare(level.bf16, "bfloat16") + compare(level.f16, "float16");
  std::printf("%d differ\n", wrong);
  return wrong != 0;
}
