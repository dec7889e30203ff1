// The CPU kernels of one SIMD level without torch, on std::thread: the loop over time with the equations of every cell,
// inline and over strips, forward and backward, alone
// and by teams of several sizes, sharing out sequences and hidden units, and two problems at once by halves of a team,
// also where one reads what the other makes. Prints what differs between teams; a thread sanitizer reports what races.
// Compiled behind what a level's file says before its own kernels, so that nothing is compiled that does not run.
#include <cstdio>
#include <cstring>
#include <random>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "recurrence/cells.h"
#include "recurrence/problem.h"

namespace rnnkern {
namespace {

using Values = std::vector<float>;

// Steps are of two chunks where units are shared out; units are a few vectors in each of three heads.
constexpr int64_t steps = 11, batch = 13, projected = 20;
constexpr int64_t hidden = Vec<float>::width < 8 ? 24 : 3 * Vec<float>::width;
static_assert(steps * batch > chunk_rows);

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

template <class F>
void on_threads(int size, F f) {
  std::vector<std::thread> others;
  for (int rank = 1; rank < size; ++rank) others.emplace_back([&, rank] { f(rank); });
  f(0);
  for (std::thread& other : others) other.join();
}

template <class Problem>
void team(Kernel<Problem> kernel, Problem& problem, int size) {
  Values workspace(kernel.workspace(problem, size));
  problem.workspace = workspace.data();
  Barrier barrier;
  on_threads(size, [&](int rank) { kernel.run(problem, ThreadContext{rank, size, &barrier}); });
}

template <class Problem>
void team_of_both(Kernel<Problem> kernel, Problem& first, Problem& second, int size) {
  Problem* const problems[] = {&first, &second};
  Values workspaces[2];
  for (const int half : {0, 1}) {
    workspaces[half].resize(kernel.workspace(*problems[half], size == 1 ? 1 : half_size(size, half)));
    problems[half]->workspace = workspaces[half].data();
  }
  Barrier barriers[2];
  on_threads(size, [&](int rank) {
    in_halves(rank, size, barriers, [&](int half, ThreadContext me) { kernel.run(*problems[half], me); });
  });
}

// Forward and backward of one recurrence, with all that they point to.
template <class S>
struct Direction {
  std::vector<int64_t> offsets;
  Values state[2], R, bias, params, W, W_hr, cells, saved, dR, dW, dW_hr, dparams[3], dbias, dbias_ih;
  std::vector<S> u, grad_h, h0;
  Result<S> result;
  Forward<float> forward{};
  Backward<float> backward{};

  Direction(const Direction&) = delete;

  Direction(const CellInfo& cell, const Strips<float>& strips, const Options& options, bool split_hidden, bool reverse,
            int64_t inputs = 7) {
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
    int64_t rows = 0;
    for (int64_t t = 0; t < steps; ++t) {
      offsets.push_back(rows);
      rows += options.packed ? batch - t : batch;
    }
    offsets.push_back(rows);
    const int64_t columns = cell.gates * hidden, d = hidden / options.heads;
    const int64_t width = cell.projected ? projected : hidden, widths[2] = {width, hidden};
    const int64_t given = options.inside ? inputs : columns;
    for (int s = 0; s < 2; ++s) {
      state[s] = draw(batch * widths[s]);
      result.final_state[s].resize(batch * widths[s]);
      result.dstate[s].resize(batch * widths[s]);
    }
    u = stored(draw(rows * given));
    grad_h = stored(draw(rows * width));
    h0 = stored(state[0]);
    R = draw(columns * width / options.heads, 0.1f);
    bias = draw(columns);
    params = draw(columns, 0.1f);
    W = draw(columns * inputs, 0.3f);
    W_hr = draw(width * hidden, 0.1f);
    result.h.resize(rows * width);
    result.du.resize(rows * given);
    cells.resize(rows * hidden);
    saved.resize(rows * hidden * cell.saved);
    dR.resize(R.size());
    dW.resize(W.size());
    dW_hr.resize(W_hr.size());
    for (Values& rows_of : dparams) rows_of.resize(batch * columns);
    dbias.resize(columns);
    dbias_ih.resize(columns);

    Forward<float>& f = forward;
    f.steps = {steps, batch, options.packed ? offsets.data() : nullptr, reverse};
    f.weights.hidden = hidden;
    f.weights.width = width;
    f.weights.R = {R.data(), bias.data(), cell.gates, options.heads, d, width / options.heads};
    if (options.inside) f.weights.W = {W.data(), nullptr, cell.gates, 1, hidden, inputs};
    if (cell.projected) f.weights.W_hr = {W_hr.data(), nullptr, 1, 1, width, hidden};
    for (const float*& own : f.weights.params) own = params.data();
    f.split_hidden = split_hidden;
    (options.inside ? f.x : f.u) = u.data();
    f.cell = cell;
    f.strips = strips;
    f.h = result.h.data();
    f.states[1] = cell.states > 1 ? cells.data() : nullptr;
    f.saved = cell.saved && !options.inside ? saved.data() : nullptr;
    Backward<float>& b = backward;
    b.cell = f.cell;
    b.strips = f.strips;
    b.steps = f.steps;
    b.weights = f.weights;
    b.split_hidden = split_hidden;
    b.u = f.u;
    b.x = f.x;
    b.h0 = h0.data();
    b.state[1] = state[1].data();
    b.h = f.h;
    b.states[1] = f.states[1];
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
  }
};

template <class S>
struct Runs {
  Kernel<Forward<float>> forward;
  Kernel<Backward<float>> backward;
  const CellInfo& cell;
  Strips<float> strips;
  Options options;

  Result<S> one(int size, bool split_hidden, bool reverse) const {
    Direction<S> direction(cell, strips, options, split_hidden, reverse);
    team(forward, direction.forward, size);
    team(backward, direction.backward, size);
    return direction.result;
  }

  std::pair<Result<S>, Result<S>> both(int size, bool split_hidden) const {
    Direction<S> first(cell, strips, options, split_hidden, false), second(cell, strips, options, split_hidden, true);
    team_of_both(forward, first.forward, second.forward, size);
    team_of_both(backward, first.backward, second.backward, size);
    return {first.result, second.result};
  }

  // A layer and the one above it, one after the other or at once.
  std::pair<Result<S>, Result<S>> layers(int size, bool at_once) const {
    Direction<S> lower(cell, strips, options, true, false);
    Direction<S> upper(cell, strips, options, true, false, cell.projected ? projected : hidden);
    upper.forward.x = upper.backward.x = lower.result.h.data();
    lower.backward.grad_h = upper.result.du.data();
    if (at_once) {
      Progress of_h, of_dx;
      lower.forward.progress = &of_h;
      upper.forward.below = &of_h;
      upper.backward.progress = &of_dx;
      lower.backward.above = &of_dx;
      team_of_both(forward, lower.forward, upper.forward, size);
      team_of_both(backward, upper.backward, lower.backward, size);
    } else {
      team(forward, lower.forward, size);
      team(forward, upper.forward, size);
      team(backward, upper.backward, size);
      team(backward, lower.backward, size);
    }
    return {lower.result, upper.result};
  }
};

constexpr int place_of(std::string_view name) {
  int place = 0;
  while (cell_list[place].name != name) ++place;
  return place;
}

// Each cell runs in float32. In 16 bits a level takes every third cell, and the levels together all of them; where
// bfloat16 is multiplied as it is stored, it takes all cells in that alone, since what else there is is another
// level's.
template <class S>
constexpr bool checked(int place) {
  constexpr int level = Vec<float>::width == 4 ? 0 : Vec<float>::width == 8 ? 1 : 2;
  if (has_bf16_dot<device::bfloat16>) return has_bf16_dot<S>;
  return !narrow<S> || (place % 3 == level && std::is_same_v<S, device::bfloat16> == (place % 2 == 1));
}

template <class S, class Cell>
int compare(const char* storage) {
  constexpr int place = place_of(Cell::name);
  int wrong = 0;
  if constexpr (checked<S>(place)) {
    const CellInfo& cell = cell_list[place];
    for (const Options& options : {Options{1, false, false}, {3, false, true}, {1, true, true}, {3, true, false}}) {
      const Options own = {cell.projected || cell.normalised ? 1 : options.heads, options.packed, options.inside};
      const Kernels<float> kernels = kernels_of<std::conditional_t<has_bf16_dot<S>, S, float>, Cell>();
      const Runs<S> runs = {kernels.forward, kernels.backward, cell, strips_of<float, Cell>(), own};
      const std::pair<Result<S>, Result<S>> alone = {runs.one(1, false, false), runs.one(1, false, true)};
      auto expect = [&](bool same, const char* what, int size, bool split_hidden) {
        if (same) return;
        std::printf("%s %s: heads %d, packed %d, inside %d: %s a team of %d differs, split_hidden %d\n", cell.name,
                    storage, int(own.heads), own.packed, own.inside, what, size, split_hidden);
        ++wrong;
      };
      for (const bool split_hidden : {false, true}) {
        for (const int size : {3, 5})
          expect(runs.one(size, split_hidden, false) == alone.first, "", size, split_hidden);
        for (const int size : {1, 2, 5}) expect(runs.both(size, split_hidden) == alone, "both by", size, split_hidden);
      }
      if (!own.inside) continue;
      const std::pair<Result<S>, Result<S>> in_turn = runs.layers(1, false);
      for (const int size : {1, 2, 5}) expect(runs.layers(size, true) == in_turn, "layers by", size, true);
    }
  }
  return wrong;
}

}  // namespace
}  // namespace rnnkern

int main() {
  using namespace rnnkern;
#define RNNKERN_COMPARE(Cell)                                                      \
  +compare<float, Cell>("float32") + compare<device::bfloat16, Cell>("bfloat16") + \
      compare<device::float16, Cell>("float16")
  const int wrong = 0 RNNKERN_ALL_CELLS(RNNKERN_COMPARE);
  std::printf("%d differ\n", wrong);
  return wrong != 0;
}
