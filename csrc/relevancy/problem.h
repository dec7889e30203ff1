// The sizes of a call of the relevancy recurrence, for the CPU and CUDA drivers and the CPU kernels.
#pragma once

#include <cstdint>

namespace rnnkern {

struct RelevancySizes {
  int64_t steps, batch, hidden;
  int64_t state, heads;  // size of s: hidden, or twice that if s = [h, context]; heads divide the hidden units
  int64_t buffer_size, slots, first_slots, relevant;  // slots after and before the call; of the relevant set
  bool dot;
  const int64_t *offsets, *lengths;  // as in RowLayout
  const bool* reset;                 // (steps, batch) or null

  int64_t kappa() const { return slots + relevant; }
  bool joined() const { return state != hidden; }
  bool keeps_all() const { return first_slots + steps <= buffer_size; }  // no event leaves the buffer
  int64_t first_of(int64_t head) const { return head * (hidden / heads); }
  int64_t row(int64_t step) const { return offsets ? offsets[step] : step * batch; }
  int64_t length(int64_t sample) const { return lengths ? lengths[sample] : steps; }
  bool resets(int64_t step, int64_t sample) const { return reset && reset[step * batch + sample]; }
};

}  // namespace rnnkern
