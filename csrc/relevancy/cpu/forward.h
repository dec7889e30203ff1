// The relevancy recurrence. Each thread takes tiles of samples, whose memory stays in its core's cache. A step screens
// the event that leaves the buffer, runs the cell, and attends to the memory. Included once per SIMD level.
#pragma once

#include "relevancy/cpu/attention.h"
#include "relevancy/cpu/problem.h"
#include "relevancy/cpu/product.h"

namespace rnnkern {
namespace {

constexpr int64_t most_samples = 12;      // per tile
constexpr int64_t cache_bytes = 5 << 17;  // part of a core's cache

// Samples per tile: with more samples the weights are read from the cache less often; with fewer, their memories still
// fit in the cache.
template <class T>
int64_t samples_at_once(const RelevancyProblem<T>& p, int64_t gates, int64_t rows_each, int team) {
  const int64_t n = p.hidden, weights = (gates + 1) * n * p.state + n * n, each = larger(1, rows_each * n);
  const int64_t fitting = cache_bytes / int64_t(sizeof(T)) / each;
  const int64_t wanted = smaller(larger(larger(fitting, weights / each), 1), most_samples);
  return larger(1, smaller(wanted, (p.batch + team - 1) / team));
}

struct Tiles {
  int64_t batch, count;

  Tiles(int64_t batch, int64_t samples, int team) : batch(batch), count((batch + samples - 1) / samples) {
    count = smaller((count + team - 1) / team * team, batch);
  }
  int64_t first(int64_t tile) const { return count ? batch * tile / count : 0; }
};

// The state and the workspace of a sample.
template <class T>
struct Carried {
  T *s, *c, *products;  // products: V s of each gate, then W_a s
  T *events, *keys;     // (kappa, width)
  T *scores, *e;        // (kappa,), and for each head (kappa,) with room for one more vector
  int64_t* ids;         // (kappa,), -1: empty
  const T **live_events, **live_keys;
  int64_t* live;
  int64_t time;
};

template <class T, class Cell>
struct ForwardWorkspace {
  int64_t width, samples;
  Packed<T> gates_and_query[Cell::gates + 1], key;
  T *v, *params;
  Carried<T> carried[most_samples];

  ForwardWorkspace(const RelevancyForward<T>& p, Workspace<T>& workspace, ThreadContext me)
      : width(padded<T>(p.hidden)), samples(samples_at_once(p, Cell::gates, 2 * p.kappa(), me.size)) {
    for (Packed<T>& block : gates_and_query) block = Packed<T>(p.state, p.hidden, workspace);
    key = Packed<T>(p.hidden, p.hidden, workspace);
    v = workspace.alloc(width);
    params = workspace.alloc(width);
    Workspace<T> own{nullptr};
    lay_out(own, p);  // without memory: measures the size for one sample
    const int64_t each = own.used * samples;
    own = {workspace.alloc(each, me)};
    if (!own.base) return;
    std::memset(own.base, 0, sizeof(T) * each);
    for (int64_t i = 0; i < samples; ++i) carried[i] = lay_out(own, p);
  }

  Carried<T> lay_out(Workspace<T>& own, const RelevancyForward<T>& p) const {
    const int64_t kappa = p.kappa();
    Carried<T> x;
    x.s = own.alloc(padded<T>(p.state));
    x.c = own.alloc(width);
    x.products = own.alloc((Cell::gates + 1) * width);
    x.events = own.alloc(kappa * width);
    x.keys = own.alloc(kappa * width);
    x.scores = own.alloc(kappa);
    x.e = own.alloc(p.heads * (kappa + Vec<T>::width));
    x.ids = own.template alloc_as<int64_t>(kappa);
    x.live = own.template alloc_as<int64_t>(kappa);
    x.live_events = own.template alloc_as<const T*>(kappa);
    x.live_keys = own.template alloc_as<const T*>(kappa);
    return x;
  }
};

template <class T>
void begin(const RelevancyForward<T>& p, int64_t b, int64_t width, Carried<T>& x) {
  const int64_t n = p.hidden, bytes = sizeof(T) * n;
  std::memcpy(x.s, p.first.s + b * p.state, sizeof(T) * p.state);
  if (p.first.c) std::memcpy(x.c, p.first.c + b * n, bytes);
  x.time = p.first.time[b];
  for (int64_t j = 0; j < p.kappa(); ++j) x.ids[j] = -1;
  for (int64_t j = 0; j < p.first_slots + p.relevant; ++j) {
    const auto from = p.first.slot(b, j, p.first_slots, p.relevant, n);
    const int64_t slot = j < p.first_slots ? j : p.slots + j - p.first_slots;
    if (*from.id < 0) continue;
    x.ids[slot] = *from.id;
    x.scores[slot] = *from.score;
    std::memcpy(x.events + slot * width, from.event, bytes);
  }
}

template <class T>
void finish(const RelevancyForward<T>& p, int64_t b, int64_t width, const Carried<T>& x) {
  const int64_t n = p.hidden, bytes = sizeof(T) * n;
  std::memcpy(p.last.s + b * p.state, x.s, sizeof(T) * p.state);
  if (p.last.c) std::memcpy(p.last.c + b * n, x.c, bytes);
  p.last.time[b] = x.time;
  for (int64_t j = 0; j < p.kappa(); ++j) {
    const auto to = p.last.slot(b, j, p.slots, p.relevant, n);
    const bool empty = x.ids[j] < 0;
    *to.id = x.ids[j];
    *to.score = empty ? T(0) : x.scores[j];
    if (empty)
      std::memset(to.event, 0, bytes);
    else
      std::memcpy(to.event, x.events + j * width, bytes);
  }
}

// Moves the event in a slot of the buffer to the relevant set, or drops it; returns its new slot there, or -1.
template <class T>
int64_t screen(const RelevancyForward<T>& p, int64_t slot, int64_t width, Carried<T>& x) {
  if (x.ids[slot] < 0 || !p.relevant) return -1;
  const int64_t first = p.slots, end = p.kappa();
  int64_t to = first;
  while (to < end && x.ids[to] >= 0) ++to;
  if (to == end) {
    to = first;
    for (int64_t j = first + 1; j < end; ++j)
      if (x.scores[j] < x.scores[to]) to = j;
    if (!(x.scores[slot] > x.scores[to])) return -1;
  }
  x.ids[to] = x.ids[slot];
  x.scores[to] = x.scores[slot];
  std::memcpy(x.events + to * width, x.events + slot * width, sizeof(T) * width);
  std::memcpy(x.keys + to * width, x.keys + slot * width, sizeof(T) * width);
  return to - first;
}

// Computes h, and the values that the cell saves, for one sample.
template <class T, class Cell>
void step_cell(const RelevancyForward<T>& p, int64_t row, const ForwardWorkspace<T, Cell>& workspace, Carried<T>& x,
               T* event) {
  using V = Vec<T>;
  constexpr int G = Cell::gates;
  const int64_t n = p.hidden;
  const T* const u = p.u + row * G * n;
  for (int64_t k = 0; k < n; k += V::width) {
    V in[G], r[G], old[2], params[Cell::params + 1], next[2], save[Cell::saved + 1];
    for (int g = 0; g < G; ++g) {
      in[g] = V::load(u + g * n + k, n - k);
      r[g] = V::load(x.products + g * workspace.width + k);
    }
    old[0] = V::load(x.s + k);
    old[1] = V::load(x.c + k);
    params[0] = V::load(workspace.params + k);
    Cell::forward(in, r, old, params, next, save);
    next[0].store(event + k, n - k);
    next[0].store(p.h + row * n + k, n - k);
    if constexpr (Cell::states == 2) {
      next[1].store(x.c + k, n - k);
      if (p.c) next[1].store(p.c + row * n + k, n - k);
    }
    if (Cell::saved && p.gates)
      for (int g = 0; g < Cell::saved; ++g) save[g].store(p.gates + (row * Cell::saved + g) * n + k, n - k);
  }
}

template <class T, class Cell>
void attend(const RelevancyForward<T>& p, int64_t row, int64_t slot, const ForwardWorkspace<T, Cell>& workspace,
            Carried<T>& x) {
  const int64_t n = p.hidden, width = workspace.width, kappa = p.kappa(), heads = p.heads;
  int64_t count = 0;
  for (int64_t j = 0; j < kappa; ++j) {
    if (x.ids[j] < 0) continue;
    x.live[count] = j;
    x.live_events[count] = x.events + j * width;
    x.live_keys[count++] = x.keys + j * width;
  }
  const T* const h = x.events + slot * width;
  if (p.joined()) std::memcpy(x.s, h, sizeof(T) * n);
  if (p.map) std::memset(p.map + row * kappa, 0, sizeof(T) * kappa);
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t first = p.first_of(head), end = heads == 1 ? width : p.first_of(head + 1);
    T* const e = x.e + head * (kappa + Vec<T>::width);
    (p.dot ? align<true, T> : align<false, T>)(x.products + Cell::gates * width, x.live_keys, count, workspace.v, first,
                                               end, e);
    softmax(e, count);
    if (p.joined()) {
      mixed<T>(nullptr, x.live_events, e, count, p.mix, first, smaller(end, n), x.s + n);
    } else {
      mixed(h, x.live_events, e, count, p.mix, first, end, x.s);
    }
    if (!p.given)
      for (int64_t i = 0; i < count && x.live[i] < p.slots; ++i) x.scores[x.live[i]] += e[i] / T(heads);
    if (p.map)
      for (int64_t i = 0; i < count; ++i) p.map[row * kappa + x.live[i]] += e[i] / T(heads);
    if (!p.alpha) continue;
    T* const alpha = p.alpha + (row * heads + head) * kappa;
    std::memset(alpha, 0, sizeof(T) * kappa);
    for (int64_t i = 0; i < count; ++i) alpha[x.live[i]] = e[i];
  }
  std::memcpy(p.s + row * p.state, x.s, sizeof(T) * p.state);
  if (p.ids) std::memcpy(p.ids + row * kappa, x.ids, sizeof(int64_t) * kappa);
}

template <class T, class Cell>
void forward_tile(const RelevancyForward<T>& p, int64_t first, int64_t last, ForwardWorkspace<T, Cell>& workspace) {
  const int64_t width = workspace.width, kappa = p.kappa();
  int64_t alive = last - first, slot[most_samples];
  Carried<T>* const x = workspace.carried;
  for (int64_t i = 0; i < alive; ++i) {
    begin(p, first + i, width, x[i]);
    const Dense<T> events{x[i].events, width}, keys{x[i].keys, width};
    workspace.key.multiply(0, p.first_slots, events, keys);
    workspace.key.multiply(p.slots, kappa, events, keys);
  }
  for (int64_t t = 0; t < p.steps; ++t) {
    while (alive > 0 && p.length(first + alive - 1) <= t) --alive;
    if (!alive) break;
    for (int64_t i = 0; i < alive; ++i) {
      if (!p.resets(t, first + i)) continue;
      std::memset(x[i].s, 0, sizeof(T) * p.state);
      std::memset(x[i].c, 0, sizeof(T) * width);
      for (int64_t j = 0; j < kappa; ++j) x[i].ids[j] = -1;
    }
    for (int block = 0; block <= Cell::gates; ++block)
      workspace.gates_and_query[block].multiply(
          0, alive, [&](int64_t i) { return x[i].s; }, [&](int64_t i) { return x[i].products + block * width; });
    for (int64_t i = 0; i < alive; ++i) {
      const int64_t b = first + i, row = p.row(t) + b;
      slot[i] = x[i].time % p.buffer_size;
      const int64_t taken = screen(p, slot[i], width, x[i]);
      if (p.taken) p.taken[row] = int32_t(taken);
      step_cell<T, Cell>(p, row, workspace, x[i], x[i].events + slot[i] * width);
      x[i].ids[slot[i]] = x[i].time++;
      x[i].scores[slot[i]] = p.given ? p.given[t * p.batch + b] : T(0);
    }
    workspace.key.multiply(
        0, alive, [&](int64_t i) { return x[i].events + slot[i] * width; },
        [&](int64_t i) { return x[i].keys + slot[i] * width; });
    for (int64_t i = 0; i < alive; ++i) attend(p, p.row(t) + first + i, slot[i], workspace, x[i]);
  }
  for (int64_t i = 0; i < last - first; ++i) finish(p, first + i, width, x[i]);
}

template <class T>
T* padded_copy(const T* from, int64_t n, int64_t width, T* to, ThreadContext me) {
  if (me.rank == 0) {
    std::memset(to, 0, sizeof(T) * width);
    if (from) std::memcpy(to, from, sizeof(T) * n);
  }
  return to;
}

template <class T, class Cell>
void forward(const RelevancyForward<T>& p, ThreadContext me) {
  const int64_t n = p.hidden;
  auto workspace = lay_out<ForwardWorkspace<T, Cell>>(p, me);
  for (int g = 0; g < Cell::gates; ++g) workspace.gates_and_query[g].pack_transposed(p.V + g * n * p.state, me);
  workspace.gates_and_query[Cell::gates].pack_transposed(p.W_a, me);
  workspace.key.pack_transposed(p.U_a, me);
  padded_copy(p.v, n, workspace.width, workspace.v, me);
  padded_copy(p.params, n, workspace.width, workspace.params, me);
  me.barrier();
  const Tiles tiles(p.batch, workspace.samples, me.size);
  for (int64_t k = me.rank; k < tiles.count; k += me.size)
    forward_tile<T, Cell>(p, tiles.first(k), tiles.first(k + 1), workspace);
}

}  // namespace
}  // namespace rnnkern
