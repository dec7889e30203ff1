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

constexpr int64_t steps = 9, batch = 13, hidden = 48, projected = 20, inputs = 7;

// What a call is, beside its cell.
struct Options {
  int64_t heads;
  bool packed;
  bool inside;  // the input projection is the kernel's, and the gates are computed again
};

template <class S>
struct Result {
  std::vector<S> h, du;  // or dx
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
void team(void (*kernel)(const Problem&, Member), int64_t (*measure_room)(const Problem&, int), Problem& problem,
          int size) {
  Values room(measure_room(problem, size));
  problem.room = room.data();
  Barrier barrier;
  std::vector<std::thread> others;
  for (int rank = 1; rank < size; ++rank) {
    others.emplace_back([&, rank] { kernel(problem, Member{rank, size, &barrier}); });
  }
  kernel(problem, Member{0, size, &barrier});
  for (std::thread& other : others) other.join();
}

template <class S>
Result<S> run(const Kernels<S>& kernels, int place, const Options& options, int size, bool split_hidden) {
  const CellInfo& cell = cell_list[place];
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  auto draw = [&](int64_t elements, float scale = 1) {
    Values values(elements);
    for (float& x : values) x = scale * normal(random);
    return values;
  };
  auto stored = [&](const Values& wide) {
    std::vector<S> values;
    for (const float x : wide) values.push_back(device::narrow<S>(x));
    return values;
  };
  std::vector<int64_t> sizes, offsets;
  int64_t rows = 0;
  for (int64_t t = 0; t < steps; ++t) {
    sizes.push_back(options.packed ? batch - t : batch);
    offsets.push_back(rows);
    rows += sizes.back();
  }
  const int64_t columns = cell.gates * hidden, d = hidden / options.heads;
  const int64_t width = cell.projected ? projected : hidden, widths[2] = {width, hidden};
  const int64_t given = options.inside ? inputs : columns;
  const Values state[2] = {draw(batch * width), draw(batch * hidden)};
  const std::vector<S> u = stored(draw(rows * given)), grad_h = stored(draw(rows * width)), h0 = stored(state[0]);
  const Values R = draw(columns * width / options.heads, 0.1f), bias = draw(columns), params = draw(columns, 0.1f);
  const Values W = draw(columns * inputs, 0.3f), W_hr = draw(width * hidden, 0.1f);
  Result<S> result;
  result.h.resize(rows * width);
  result.du.resize(rows * given);
  for (int s = 0; s < 2; ++s) {
    result.final_state[s].resize(batch * widths[s]);
    result.dstate[s].resize(batch * widths[s]);
  }
  Values cells(rows * hidden), saved(rows * hidden * cell.saved), dR(R.size()), dW(W.size()), dW_hr(W_hr.size());
  Values dparams[3] = {Values(batch * columns), Values(batch * hidden), Values(batch * hidden)}, dbias(columns),
         dbias_ih(columns);

  Forward<S> f{};
  f.steps = {steps, batch, options.packed ? sizes.data() : nullptr, options.packed ? offsets.data() : nullptr, false};
  f.weights = {hidden, width, {R.data(), bias.data(), cell.gates, options.heads, d, width / options.heads}, {}, {}, {}};
  if (options.inside) f.weights.W = {W.data(), nullptr, cell.gates, 1, hidden, inputs};
  if (cell.projected) f.weights.W_hr = {W_hr.data(), nullptr, 1, 1, width, hidden};
  for (const float*& own : f.weights.params) own = params.data();
  f.split_hidden = split_hidden;
  (options.inside ? f.x : f.u) = u.data();
  f.h = result.h.data();
  f.cell_states = cell.states > 1 ? cells.data() : nullptr;
  f.saved = cell.saved && !options.inside ? saved.data() : nullptr;
  Backward<S> b{};
  b.steps = f.steps;
  b.weights = f.weights;
  b.split_hidden = split_hidden;
  b.u = f.u;
  b.x = f.x;
  b.h0 = h0.data();
  b.c0 = state[1].data();
  b.h = f.h;
  b.cell_states = f.cell_states;
  b.saved = f.saved;
  b.grad_h = grad_h.data();
  (options.inside ? b.dx : b.du) = result.du.data();
  b.dbias = dbias.data();
  b.dbias_ih = cell.joint ? nullptr : dbias_ih.data();
  b.dR = dR.data();
  b.dW = options.inside ? dW.data() : nullptr;
  b.dW_hr = cell.projected ? dW_hr.data() : nullptr;
  for (int i = 0; i < 3; ++i) b.dparams[i] = dparams[i].data();
  for (int s = 0; s < cell.states; ++s) {
    f.state[s] = state[s].data();
    f.final_state[s] = result.final_state[s].data();
    b.dstate[s] = result.dstate[s].data();
  }
  team(kernels.forward[place], kernels.forward_room[place], f, size);
  team(kernels.backward[place], kernels.backward_room[place], b, size);
  return result;
}

template <class S>
int compare(const Kernels<S>& kernels, const char* storage) {
  int wrong = 0;
  for (size_t place = 0; place < sizeof cell_list / sizeof *cell_list; ++place) {
    const CellInfo& cell = cell_list[place];
    for (const Options& options : {Options{1, false, false}, {3, false, true}, {1, true, true}, {3, true, false}}) {
      const Options own = {cell.projected || cell.normalised ? 1 : options.heads, options.packed, options.inside};
      const Result<S> alone = run(kernels, int(place), own, 1, false);
      for (const int size : {2, 3, 5}) {
        for (const bool split_hidden : {false, true}) {
          if (run(kernels, int(place), own, size, split_hidden) == alone) continue;
          std::printf("%s %s: heads %d, packed %d, inside %d: a team of %d differs, split_hidden %d\n", cell.name,
                      storage, int(own.heads), own.packed, own.inside, size, split_hidden);
          ++wrong;
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
  if (count > 1 && !std::strcmp(arguments[1], "avx512_bf16")) level = level_avx512_bf16();
#endif
  const int wrong = compare(level.f32, "float32") + compare(level.bf16, "bfloat16") + compare(level.f16, "float16");
  std::printf("%d differ\n", wrong);
  return wrong != 0;
}
