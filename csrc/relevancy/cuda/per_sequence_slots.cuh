// What a block that has a sample for all steps knows of its slots. The blocks of a cluster do the same here in the same
// order, and so need not tell each other.
#pragma once

#include "relevancy/cuda/stepwise_attention_screen.cuh"

namespace rnnkern::relevancy {

struct PerSequenceSlots {
  int slots, relevant_size;
  float *scores, *weights, *e;  // (kappa,) each, by slot: beta, alpha, and the scores that it is made of
  int64_t* ids;                 // (kappa,)
  int32_t* where;               // (kappa,): an event never moves, slots are renamed
  int32_t* taken;               // the slot of the relevant set that was overwritten, and where the new event lies

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

  // f(slot) of the buffer's and then of the relevant set's, as in stepwise_attention_forward.cuh.
  template <class F>
  RNNKERN_DEVICE void each(int first, int stride, F f) const {
    for (int k = first; k < slots; k += stride) f(k);
    for (int k = first; k < relevant_size; k += stride) f(slots + k);
  }

  // f(slot, row of the tensors, whether of the buffer), of one sample.
  template <class F>
  RNNKERN_DEVICE void each_row(int64_t b, int first, int stride, F f) const {
    for (int k = first; k < slots; k += stride) f(k, b * slots + k, true);
    for (int k = first; k < relevant_size; k += stride) f(slots + k, b * relevant_size + k, false);
  }

  // From and to what the call begins with and leaves, but for the events.
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

  // By one warp: the event `now` enters, another may leave. Lanes see what others wrote before the last barrier alone,
  // so that each slot is written by one of them.
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
    // Asked for in any case: its shuffles stand between what all lanes have read and what the first then writes.
    const auto found = screen(ids + slots, scores + slots, relevant_size, scores[slot]);
    if (device::lane() > 0) return;
    const int overwritten = leaves ? int(found) : none;
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

  // Undoes `enter`, but that it says whether the slot that the event then freed holds one: its place is the new
  // event's.
  RNNKERN_DEVICE void withdraw(int slot, int overwritten, bool there) const {
    const int other = overwritten < 0 ? slot : slots + overwritten, place = where[other];
    where[other] = where[slot];
    where[slot] = place;
    ids[other] = there ? 0 : -1;
  }

  // alpha from e, by every warp for itself but for what is written, to beta too unless scores are given.
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

  // What a call wants of a step beside h and s.
  RNNKERN_DEVICE void tell(const PerSequenceForward& p, int64_t row, int threads) const {
    const int64_t kappa = members();
    each(device::thread(), threads, [&](int k) {
      if (p.alpha) p.alpha[row * kappa + k] = weights[k];
      if (p.ids) p.ids[row * kappa + k] = ids[k];
    });
    if (device::thread() == 0 && p.taken) p.taken[row] = taken[0];
  }
};

}  // namespace rnnkern::relevancy
