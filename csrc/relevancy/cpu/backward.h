// The backward of the relevancy recurrence. An event is in the slots of its sample for one interval of time, so that
// two gradients per slot suffice: of the event and of its key. Included once per SIMD level.
#pragma once

#include "cpu/weight_gradient.h"
#include "relevancy/cpu/forward.h"

namespace rnnkern {
namespace {

// The event in a slot: the step that produced it, no_event, or -2 - j for the event that was in slot j before the call.
constexpr int64_t no_event = -1;
constexpr int64_t first_in(int64_t slot) { return -2 - slot; }

// The workspace of a sample.
template <class T>
struct Returning {
  T *ds, *dc, *dh, *dcontext, *dv, *dparam;
  T* operand;                        // gradients of u, gate by gate, then of the query: n each
  T *grads_of_event, *grads_of_key;  // (kappa, width)
  T* grads_of_score;                 // (kappa,)
  T *alpha, *de;                     // (kappa,), and room for one more vector
  int64_t* in_slot;                  // (kappa,)
  int64_t *leaving, *overwritten;    // (steps,): the events that left the buffer and the relevant set in each step
  Attended<T> members;
};

template <class T, class Cell>
struct BackwardWorkspace {
  static constexpr int blocks = Cell::gates + 1;
  int64_t width, samples;
  Packed<T> query, key, back_through_key, back_through_gates_and_query;
  T *v, *params;
  T *queries, *keys, *buffer_keys, *relevant_keys;  // of all rows; later overwritten by their gradients
  T *of_v, *of_params;                              // (batch, width)
  T* nothing;                                       // a row of zeros
  PartialSums<T> dV, dW_a, dU_a;
  T* of_rows;  // workspace of a weight's gradient
  Returning<T> returning[most_samples];

  BackwardWorkspace(const RelevancyBackward<T>& p, Workspace<T>& workspace, ThreadContext me)
      : width(padded<T>(p.hidden)),
        samples(samples_at_once(p, Cell::gates, 4 * p.kappa(), me.size)),
        query(p.state, p.hidden, workspace),
        key(p.hidden, p.hidden, workspace),
        back_through_key(p.hidden, p.hidden, workspace),
        back_through_gates_and_query(blocks * p.hidden, p.state, workspace),
        dV(p.dV, 1, weight(p, Cell::gates, p.state), workspace),
        dW_a(p.dW_a, 1, weight(p, 1, p.state), workspace),
        dU_a(p.dU_a, 1, weight(p, 1, p.hidden), workspace),
        of_rows(workspace.alloc(WeightGradient<T>::workspace_size(weight(p, 1, p.state)), me)) {
    const int64_t n = p.hidden, rows = p.row(p.steps);
    v = workspace.alloc(width);
    params = workspace.alloc(width);
    queries = workspace.alloc(rows * n);
    keys = workspace.alloc(rows * n);
    buffer_keys = workspace.alloc(p.batch * p.first_slots * n);
    relevant_keys = workspace.alloc(p.batch * p.relevant * n);
    of_v = workspace.alloc(p.batch * width);
    of_params = workspace.alloc(p.batch * width);
    nothing = workspace.alloc(padded<T>(p.state));
    Workspace<T> own{nullptr};
    lay_out(own, p);  // without memory: measures the size for one sample
    own = {workspace.alloc(own.used * samples, me)};
    if (!own.base) return;
    for (int64_t i = 0; i < samples; ++i) returning[i] = lay_out(own, p);
  }

  static WeightSizes weight(const RelevancyBackward<T>& p, int64_t blocks, int64_t columns) {
    return {1, 1, blocks * p.hidden, columns};
  }

  Returning<T> lay_out(Workspace<T>& own, const RelevancyBackward<T>& p) const {
    const int64_t kappa = p.kappa(), steps = p.steps;
    Returning<T> x;
    x.ds = own.alloc(padded<T>(p.state));
    for (T** const row : {&x.dc, &x.dh, &x.dcontext, &x.dv, &x.dparam}) *row = own.alloc(width);
    x.operand = own.alloc(blocks * p.hidden + Vec<T>::width);
    x.grads_of_event = own.alloc(kappa * width);
    x.grads_of_key = own.alloc(kappa * width);
    x.grads_of_score = own.alloc(kappa);
    x.alpha = own.alloc(kappa + Vec<T>::width);
    x.de = own.alloc(kappa + Vec<T>::width);
    x.in_slot = own.template alloc_as<int64_t>(kappa);
    x.leaving = own.template alloc_as<int64_t>(steps);
    x.overwritten = own.template alloc_as<int64_t>(steps);
    x.members = {own.template alloc_as<const T*>(kappa), own.template alloc_as<const T*>(kappa),
                 own.template alloc_as<T*>(kappa), own.template alloc_as<T*>(kappa)};
    return x;
  }
};

// s before the step of a row; null after a reset.
template <class T>
const T* s_before(const RelevancyBackward<T>& p, int64_t t, int64_t b) {
  if (p.resets(t, b)) return nullptr;
  return t ? p.s + (p.row(t - 1) + b) * p.state : p.first.s + b * p.state;
}

// Finds the step of a row, for rows that come in order.
template <class T>
struct PreviousState {
  const RelevancyBackward<T>& p;
  const T* nothing;
  int64_t t = 0;

  const T* operator()(int64_t row) {
    if (row < p.row(t)) t = 0;
    while (row >= p.row(t + 1)) ++t;
    const T* found = s_before(p, t, row - p.row(t));
    return found ? found : nothing;
  }
};

// Restores the slots as they were after step end - 1, by replaying the steps since the last reset.
template <class T>
void replay(const RelevancyBackward<T>& p, int64_t b, int64_t end, const Returning<T>& x) {
  const int64_t kappa = p.kappa();
  int64_t begin = end;
  bool emptied = false;
  if (!p.reset) begin = 0;
  while (begin > 0 && !emptied) emptied = p.reset[--begin * p.batch + b];
  for (int64_t j = 0; j < kappa; ++j) {
    const int64_t before = j < p.slots ? j : p.first_slots + j - p.slots;  // its place before the call
    const bool there = !emptied && (j >= p.slots || j < p.first_slots);
    const bool held = there && *p.first.slot(b, before, p.first_slots, p.relevant, p.hidden).id >= 0;
    x.in_slot[j] = held ? first_in(j) : no_event;
  }
  for (int64_t t = begin; t < end; ++t) {
    const int64_t slot = (p.first.time[b] + t) % p.buffer_size, taken = p.taken[p.row(t) + b];
    x.leaving[t] = x.in_slot[slot];
    if (taken >= 0) {
      x.overwritten[t] = x.in_slot[p.slots + taken];
      x.in_slot[p.slots + taken] = x.in_slot[slot];
    }
    x.in_slot[slot] = t;
  }
}

template <class T>
const T* row_of(const T* rows, const T* buffer, const T* relevant, const RelevancyBackward<T>& p, int64_t b,
                int64_t event) {
  const int64_t n = p.hidden, j = -2 - event;
  if (event >= 0) return rows + (p.row(event) + b) * n;
  return j < p.slots ? buffer + (b * p.first_slots + j) * n : relevant + (b * p.relevant + j - p.slots) * n;
}

// Clears the gradients of the memory.
template <class T>
void clear_memory(int64_t kappa, int64_t width, Returning<T>& x) {
  std::memset(x.grads_of_event, 0, sizeof(T) * kappa * width);
  std::memset(x.grads_of_key, 0, sizeof(T) * kappa * width);
  std::memset(x.grads_of_score, 0, sizeof(T) * kappa);
}

template <class T>
void begin(const RelevancyBackward<T>& p, int64_t b, int64_t width, Returning<T>& x) {
  const int64_t n = p.hidden, kappa = p.kappa(), bytes = sizeof(T) * n;
  std::memset(x.ds, 0, sizeof(T) * padded<T>(p.state));
  for (T* const row : {x.dc, x.dh, x.dcontext, x.dv, x.dparam}) std::memset(row, 0, sizeof(T) * width);
  clear_memory(kappa, width, x);
  if (p.dscores)
    for (int64_t t = p.length(b); t < p.steps; ++t) p.dscores[t * p.batch + b] = 0;
  replay(p, b, p.length(b), x);
  if (!p.grad_last_s) return;
  std::memcpy(x.ds, p.grad_last_s + b * p.state, sizeof(T) * p.state);
  if (p.grad_last_c) std::memcpy(x.dc, p.grad_last_c + b * n, bytes);
  for (int64_t j = 0; j < kappa; ++j) {
    if (x.in_slot[j] == no_event) continue;
    const T* from = j < p.slots ? p.grad_last_buffer + (b * p.slots + j) * n
                                : p.grad_last_relevant + (b * p.relevant + j - p.slots) * n;
    std::memcpy(x.grads_of_event + j * width, from, bytes);
  }
}

// Backward of s = mix (h + sum alpha events): gradients of h (this part of it), of the query and of the memory.
template <class T, class Cell>
void mixed_backward(const RelevancyBackward<T>& p, int64_t t, int64_t b, const BackwardWorkspace<T, Cell>& workspace,
                    Returning<T>& x) {
  using V = Vec<T>;
  const int64_t n = p.hidden, width = workspace.width, row = p.row(t) + b, kappa = p.kappa(), heads = p.heads;
  const auto of_s = [&](int64_t first, int64_t k) {
    V d = V::load(x.ds + first + k, n - k);
    if (p.grad_s) d = d + V::load(p.grad_s + row * p.state + first + k, n - k);
    return V(p.mix) * d;
  };
  for (int64_t k = 0; k < n; k += V::width) {
    V d = of_s(0, k);
    (p.joined() ? of_s(n, k) : d).store(x.dcontext + k, n - k);
    if (p.grad_h) d = d + V::load(p.grad_h + row * n + k, n - k);
    d.store(x.dh + k, n - k);
  }
  int64_t count = 0;
  for (int64_t j = 0; j < kappa; ++j) {
    if (x.in_slot[j] == no_event) continue;
    x.members.events[count] = row_of<T>(p.h, p.first.buffer, p.first.relevant, p, b, x.in_slot[j]);
    x.members.keys[count] =
        row_of<T>(workspace.keys, workspace.buffer_keys, workspace.relevant_keys, p, b, x.in_slot[j]);
    x.members.grad_events[count] = x.grads_of_event + j * width;
    x.members.grad_keys[count++] = x.grads_of_key + j * width;
  }
  const T* const query = workspace.queries + row * n;
  for (int64_t head = 0; head < heads; ++head) {
    const int64_t first = p.first_of(head), end = p.first_of(head + 1);
    if (p.alpha) {
      const T* const alpha = p.alpha + (row * heads + head) * kappa;
      int64_t i = 0;
      for (int64_t j = 0; j < kappa; ++j)
        if (x.in_slot[j] != no_event) x.alpha[i++] = alpha[j];
    } else {
      (p.dot ? align<true, T> : align<false, T>)(query, x.members.keys, count, workspace.v, first, end, x.alpha);
      softmax(x.alpha, count);  // not with the forward's sum: large scores are rounded differently here
    }
    (p.dot ? attend_backward<true, T> : attend_backward<false, T>)(x.members, x.alpha, count, x.dcontext, query,
                                                                   workspace.v, first, end, x.de,
                                                                   x.operand + Cell::gates * n, x.dv);
    if (!p.dscores) continue;
    int64_t i = 0;
    for (int64_t j = 0; j < kappa; ++j)
      if (x.in_slot[j] != no_event) x.grads_of_score[j] += x.de[i++];
  }
}

// The gradients of the event of step t are complete: stores them, and restores the slots as they were before step t.
template <class T, class Cell>
void give_back(const RelevancyBackward<T>& p, int64_t t, int64_t b, const BackwardWorkspace<T, Cell>& workspace,
               Returning<T>& x) {
  using V = Vec<T>;
  const int64_t n = p.hidden, width = workspace.width, row = p.row(t) + b, bytes = sizeof(T) * width;
  const int64_t slot = (p.first.time[b] + t) % p.buffer_size, taken = p.taken[row];
  T *const of_event = x.grads_of_event + slot * width, *const of_key = x.grads_of_key + slot * width;
  for (int64_t k = 0; k < width; k += V::width) (V::load(x.dh + k) + V::load(of_event + k)).store(x.dh + k);
  std::memcpy(workspace.keys + row * n, of_key, sizeof(T) * n);
  if (p.dscores) p.dscores[t * p.batch + b] = x.grads_of_score[slot];
  x.grads_of_score[slot] = 0;
  x.in_slot[slot] = x.leaving[t];
  if (taken < 0) {
    std::memset(of_event, 0, bytes);
    std::memset(of_key, 0, bytes);
    return;
  }
  const int64_t from = p.slots + taken;
  for (T* const grads : {x.grads_of_event, x.grads_of_key}) {
    std::memcpy(grads + slot * width, grads + from * width, bytes);
    std::memset(grads + from * width, 0, bytes);
  }
  std::swap(x.grads_of_score[slot], x.grads_of_score[from]);
  x.in_slot[from] = x.overwritten[t];
}

template <class T, class Cell>
void step_back(const RelevancyBackward<T>& p, int64_t t, int64_t b, const BackwardWorkspace<T, Cell>& workspace,
               Returning<T>& x) {
  using V = Vec<T>;
  constexpr int G = Cell::gates;
  const int64_t n = p.hidden, row = p.row(t) + b;
  const bool emptied = p.resets(t, b);
  const T* old_c = Cell::states == 1 || emptied ? workspace.nothing
                   : t                          ? p.c + (p.row(t - 1) + b) * n
                                                : p.first.c + b * n;
  for (int64_t k = 0; k < n; k += V::width) {
    V save[Cell::saved + 1], old[2], next[2], params[Cell::params + 1], grad[2], du[G], dr[G],
        dparams[Cell::params + 1];
    for (int g = 0; g < Cell::saved; ++g) save[g] = V::load(p.gates + (row * Cell::saved + g) * n + k, n - k);
    if constexpr (Cell::states == 2) old[1] = V::load(old_c + k, n - k);
    next[0] = V::load(p.h + row * n + k, n - k);
    params[0] = V::load(workspace.params + k);
    grad[0] = V::load(x.dh + k);
    grad[1] = V::load(x.dc + k);
    dparams[0] = V::load(x.dparam + k);
    Cell::backward(save, old, next, params, grad, du, dr, dparams);
    if constexpr (Cell::states == 2) grad[1].store(x.dc + k, n - k);
    dparams[0].store(x.dparam + k, n - k);
    for (int g = 0; g < G; ++g) {
      du[g].store(x.operand + g * n + k, n - k);
      du[g].store(p.du + (row * G + g) * n + k, n - k);
    }
  }
  std::memcpy(workspace.queries + row * n, x.operand + G * n, sizeof(T) * n);
}

template <class T, class Cell>
void end(const RelevancyBackward<T>& p, int64_t b, const BackwardWorkspace<T, Cell>& workspace, Returning<T>& x) {
  const int64_t n = p.hidden, width = workspace.width, bytes = sizeof(T) * n;
  std::memcpy(p.ds + b * p.state, x.ds, sizeof(T) * p.state);
  if (p.dc) std::memcpy(p.dc + b * n, x.dc, bytes);
  std::memcpy(workspace.of_v + b * width, x.dv, sizeof(T) * width);
  std::memcpy(workspace.of_params + b * width, x.dparam, sizeof(T) * width);
  const auto give = [&](int64_t slot, int64_t at, T* of_events, T* of_keys) {
    std::memcpy(of_events + at * n, x.grads_of_event + slot * width, bytes);
    std::memcpy(of_keys + at * n, x.grads_of_key + slot * width, bytes);
    workspace.back_through_key.multiply(0, 1, Dense<T>{of_keys + at * n, n}, Dense<T>{of_events + at * n, n}, true);
  };
  for (int64_t j = 0; j < p.first_slots; ++j) give(j, b * p.first_slots + j, p.dbuffer, workspace.buffer_keys);
  for (int64_t j = 0; j < p.relevant; ++j) give(p.slots + j, b * p.relevant + j, p.drelevant, workspace.relevant_keys);
}

template <class T, class Cell>
void backward_tile(const RelevancyBackward<T>& p, int64_t first, int64_t last, BackwardWorkspace<T, Cell>& workspace) {
  const int64_t n = p.hidden, width = workspace.width;
  Returning<T>* const x = workspace.returning;
  for (int64_t i = 0; i < last - first; ++i) begin(p, first + i, width, x[i]);
  int64_t alive = 0;
  for (int64_t t = p.steps - 1; t >= 0; --t) {
    while (alive < last - first && p.length(first + alive) > t) ++alive;
    for (int64_t i = 0; i < alive; ++i) {
      mixed_backward<T, Cell>(p, t, first + i, workspace, x[i]);
      give_back<T, Cell>(p, t, first + i, workspace, x[i]);
    }
    workspace.back_through_key.multiply(
        0, alive, [&](int64_t i) { return workspace.keys + (p.row(t) + first + i) * n; },
        [&](int64_t i) { return x[i].dh; }, true);
    for (int64_t i = 0; i < alive; ++i) step_back<T, Cell>(p, t, first + i, workspace, x[i]);
    workspace.back_through_gates_and_query.multiply(
        0, alive, [&](int64_t i) { return x[i].operand; }, [&](int64_t i) { return x[i].ds; });
    for (int64_t i = 0; i < alive; ++i) {
      if (!p.resets(t, first + i)) continue;
      std::memset(x[i].ds, 0, sizeof(T) * p.state);
      std::memset(x[i].dc, 0, sizeof(T) * width);
      clear_memory(p.kappa(), width, x[i]);
      replay(p, first + i, t, x[i]);
    }
  }
  for (int64_t i = 0; i < last - first; ++i) end<T, Cell>(p, first + i, workspace, x[i]);
}

// to (columns of left, n) += left^T right, summed over rows. Threads divide the columns of left; each has a workspace.
template <class T, class Right>
void add_products(const T* left, int64_t columns, int64_t rows, int64_t n, Right right, T* to, T* workspace,
                  ThreadContext me) {
  const auto [first, last] = me.share(columns);
  WeightGradient<T> gradient({1, 1, columns, n}, 0, 1, first, last, to, workspace);
  gradient.expect(rows);
  for (int64_t row = 0; row < rows; ++row) gradient.add(left + row * columns, right(row));
  gradient.flush();
}

// This thread's columns of the sum over samples.
template <class T>
void sum_samples(const T* of_samples, int64_t batch, int64_t n, int64_t width, T* to, ThreadContext me) {
  const auto [first, last] = me.share(n);
  for (int64_t k = first; k < last; ++k) {
    T sum = 0;
    for (int64_t b = 0; b < batch; ++b) sum += of_samples[b * width + k];
    to[k] = sum;
  }
}

template <class T, class Cell>
void backward(const RelevancyBackward<T>& p, ThreadContext me) {
  const int64_t n = p.hidden, rows = p.row(p.steps), buffered = p.batch * p.first_slots,
                relevant = p.batch * p.relevant;
  auto workspace = lay_out<BackwardWorkspace<T, Cell>>(p, me);
  workspace.query.pack_transposed(p.W_a, me);
  workspace.key.pack_transposed(p.U_a, me);
  workspace.back_through_key.pack(p.U_a, me);
  const auto& joint = workspace.back_through_gates_and_query;
  joint.pack(0, Cell::gates * n, [&](int64_t k, int64_t j) { return p.V[k * p.state + j]; }, me);
  joint.pack(Cell::gates * n, n, [&](int64_t k, int64_t j) { return p.W_a[k * p.state + j]; }, me);
  padded_copy(p.v, n, workspace.width, workspace.v, me);
  padded_copy(p.params, n, workspace.width, workspace.params, me);
  padded_copy<T>(nullptr, p.state, padded<T>(p.state), workspace.nothing, me);
  T *const dV = workspace.dV.begin(me), *const dW_a = workspace.dW_a.begin(me), *const dU_a = workspace.dU_a.begin(me);
  me.barrier();

  PreviousState<T> previous{p, workspace.nothing};
  const auto multiply = [&](const Packed<T>& matrix, int64_t all, auto from, T* to) {
    const auto [first, last] = me.share(all);
    matrix.multiply(first, last, from, Dense<T>{to, n});
  };
  multiply(workspace.query, rows, [&](int64_t row) { return previous(row); }, workspace.queries);
  multiply(workspace.key, rows, Dense<const T>{p.h, n}, workspace.keys);
  multiply(workspace.key, buffered, Dense<const T>{p.first.buffer, n}, workspace.buffer_keys);
  multiply(workspace.key, relevant, Dense<const T>{p.first.relevant, n}, workspace.relevant_keys);
  me.barrier();

  const Tiles tiles(p.batch, workspace.samples, me.size);
  for (int64_t k = me.rank; k < tiles.count; k += me.size)
    backward_tile<T, Cell>(p, tiles.first(k), tiles.first(k + 1), workspace);
  me.barrier();

  const auto add = [&](const T* left, int64_t columns, int64_t rows, int64_t size, auto right, T* to) {
    add_products(left, columns, rows, size, right, to, workspace.of_rows, me);
  };
  add(p.du, Cell::gates * n, rows, p.state, previous, dV);
  add(workspace.queries, n, rows, p.state, previous, dW_a);
  add(workspace.keys, n, rows, n, Dense<const T>{p.h, n}, dU_a);
  add(workspace.buffer_keys, n, buffered, n, Dense<const T>{p.first.buffer, n}, dU_a);
  add(workspace.relevant_keys, n, relevant, n, Dense<const T>{p.first.relevant, n}, dU_a);
  sum_samples(workspace.of_v, p.batch, n, workspace.width, p.dv, me);
  if (Cell::params) sum_samples(workspace.of_params, p.batch, n, workspace.width, p.dparams, me);
  me.barrier();
  for (const PartialSums<T>* gradient : {&workspace.dV, &workspace.dW_a, &workspace.dU_a}) gradient->add_up(me);
}

}  // namespace
}  // namespace rnnkern
