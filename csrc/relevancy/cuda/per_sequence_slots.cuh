// The slots of a sample, in a block that processes all its steps. The blocks of a cluster do the same updates in the
// same order, and need not exchange them.
#pragma once

#include "relevancy/cuda/stepwise_attention_screen.cuh"

namespace rnnkern::relevancy {

struct PerSequenceSlots {
  int slots, relevant_size;
  float *scores, *weights, *e;  // (kappa,) each, by slot: beta, alpha, and the scores e
  int64_t* ids;                 // (kappa,)
  int32_t* where;               // (kappa,): the place of a slot's event; events do not move
  int32_t* taken;               // the slot of the relevant set that was overwritten, and the place of the new event

  static RNNKERN_HOST_DEVICE PerSequenceSlots carve(device::SharedArena& arena, int64_t slots, int64_t relevant_size) {
    PerSequenceSlots made;
    const int64_t kappa = slots + relevant_size;
    made.slots = int(slots);
    made.relevant_size = int(relevant_size);
    for (float** x : {&made.scores, &made.weights, &made.e}) *x = arena.alloc<float>(kappa);
    made.ids = arena.alloc<int64_t>(kappa);
    made.where = arena.alloc<int32_t>(kappa);
    made.taken = arena.alloc<int32_t>(2);
    return made;
  }

  RNNKERN_HOST_DEVICE int members() const { return slots + relevant_size; }

  // Calls f(slot) for the slots of the buffer, then of the relevant set, as in stepwise_attention_forward.cuh.
  template <class F>
  RNNKERN_DEVICE void each(int first, int stride, F f) const {
    for (int k = first; k < slots; k += stride) f(k);
    for (int k = first; k < relevant_size; k += stride) f(slots + k);
  }

  // Calls f(slot, row of the tensors, whether in the buffer), for one sample.
  template <class F>
  RNNKERN_DEVICE void each_row(int64_t b, int first, int stride, F f) const {
    for (int k = first; k < slots; k += stride) f(k, b * slots + k, true);
    for (int k = first; k < relevant_size; k += stride) f(slots + k, b * relevant_size + k, false);
  }

  // Reads and writes the slots of the initial and the final state, without the events.
  RNNKERN_DEVICE void read(const Memory<float>& from, int64_t b, int threads) const {
    each_row(b, device::thread(), threads, [&](int slot, int64_t row, bool of_buffer) {
      ids[slot] = (of_buffer ? from.buffer_ids : from.ids)[row];
      scores[slot] = (of_buffer ? from.buffer_scores : from.scores)[row];
      where[slot] = slot;
    });
  }
  RNNKERN_DEVICE void write(const Memory<float>& to, int64_t b, int64_t now, int threads) const {
    each_row(b, device::thread(), threads, [&](int slot, int64_t row, bool of_buffer) {
      (of_buffer ? to.buffer_ids : to.ids)[row] = ids[slot];
      (of_buffer ? to.buffer_scores : to.scores)[row] = scores[slot];
    });
    if (device::thread() == 0) to.time[b] = now;
  }

  // Called by one warp: event `now` enters, and another one may leave.
  RNNKERN_DEVICE void enter(int64_t now, int64_t buffer_size, bool reset, float given) const {
    const int64_t wanted = slot_of(now, buffer_size);
    const int slot = int(wanted < slots ? wanted : slots - 1), none = -1;
    const bool leaves = !reset && ids[slot] >= 0;
    if (reset) {
      each(device::lane(), device::warp_size, [&](int k) {
        if (k == slot) return;
        ids[k] = none;
        scores[k] = 0;
      });
    }
    const int overwritten = leaves ? int(screen(ids + slots, scores + slots, relevant_size, scores[slot])) : none;
    device::warp_barrier();  // the first lane overwrites what all lanes have read
    if (device::lane() > 0) return;
    if (overwritten >= 0) {
      const int other = slots + overwritten, place = where[other];
      where[other] = where[slot];
      where[slot] = place;
      ids[other] = ids[slot];
      scores[other] = scores[slot];
    }
    ids[slot] = now;
    scores[slot] = given;
    taken[0] = overwritten;
    taken[1] = where[slot];
  }

  // Undoes `enter`. If an event was forgotten then (`there`), it returns to its slot, in the place of the new event.
  RNNKERN_DEVICE void withdraw(int slot, int overwritten, bool there) const {
    const int other = overwritten < 0 ? slot : slots + overwritten, place = where[other];
    where[other] = where[slot];
    where[slot] = place;
    ids[other] = there ? 0 : -1;
  }

  // alpha from e. Every warp computes the sums itself; each slot is written once. Adds to beta unless scores are given.
  RNNKERN_DEVICE void weigh(int threads, bool given) const {
    const int lane = device::lane(), warp_size = device::warp_size;
    float most = -INFINITY, sum = 0;
    each(lane, warp_size, [&](int k) {
      if (ids[k] >= 0) most = greater(most, e[k]);
    });
    RNNKERN_UNROLL
    for (int mask = warp_size / 2; mask > 0; mask /= 2) most = greater(most, shuffle_xor_any(most, mask));
    each(lane, warp_size, [&](int k) {
      if (ids[k] >= 0) sum += exponential(e[k] - most);
    });
    sum = warp_sum(sum);
    each(device::thread(), threads, [&](int k) {
      const bool there = ids[k] >= 0;
      weights[k] = there ? exponential(e[k] - most) / sum : 0.0f;
      if (there && !given && k < slots) scores[k] += weights[k];
    });
  }

  // Writes the optional outputs of a step.
  RNNKERN_DEVICE void tell(const PerSequenceForward& p, int64_t row, int threads) const {
    const int64_t kappa = members();
    each(device::thread(), threads, [&](int k) {
      if (p.alpha) p.alpha[row * kappa + k] = weights[k];
      if (p.ids) p.ids[row * kappa + k] = ids[k];
    });
    if (device::thread() == 0 && p.taken) p.taken[row] = taken[0];
  }
};

// Stores the new state of a unit, and what the backward needs.
template <class Cell>
RNNKERN_DEVICE void store_step(const PerSequenceForward& p, int64_t row, int unit, const float (&next)[2],
                               const float (&save)[Cell::saved + 1]) {
  const int64_t n = p.rows.hidden;
  p.h[row * n + unit] = next[0];
  if (Cell::states > 1 && p.cells) p.cells[row * n + unit] = next[1];
  RNNKERN_UNROLL
  for (int k = 0; k < Cell::saved; ++k) {
    if (p.gates) p.gates[(row * Cell::saved + k) * n + unit] = save[k];
  }
}

}  // namespace rnnkern::relevancy
