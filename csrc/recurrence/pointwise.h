// The pointwise stage of one step, apart from its product: one unit of one sequence per call, on the host or on a
// device.
#pragma once

#include <cstdint>

#include "cells/list.h"

namespace rnnkern {

template <class T>
struct Pointwise {
  int64_t batch, hidden;
  const T *u, *r;      // (B, G*H); r = R h + b, of a second product too
  const T* state[2];   // (B, H)
  const T* params[2];  // (H,)
  T* next[2];          // (B, H)
  T* operand;          // (B, H): not null asks for the operand of the second product, and for nothing else
};

template <class Cell, class T>
RNNKERN_CELL void pointwise_unit(const Pointwise<T>& p, int64_t index) {
  const int64_t b = index / p.hidden, unit = index % p.hidden;
  T u[Cell::gates], r[Cell::gates], old[Cell::states], next[Cell::states];
  T params[Cell::params + 1], save[Cell::saved + 1];
  for (int g = 0; g < Cell::gates; ++g) {
    u[g] = p.u[(b * Cell::gates + g) * p.hidden + unit];
    r[g] = p.r[(b * Cell::gates + g) * p.hidden + unit];
  }
  for (int s = 0; s < Cell::states; ++s) old[s] = p.state[s][index];
  for (int i = 0; i < Cell::params; ++i) params[i] = p.params[i][unit];
  if constexpr (Cell::two_products) {
    T operand;
    Cell::prepare(u, r, old, save, operand);
    if (p.operand) {
      p.operand[index] = operand;
      return;
    }
  }
  Cell::forward(u, r, old, params, next, save);
  for (int s = 0; s < Cell::states; ++s) p.next[s][index] = next[s];
}

// `place` is the cell's in cells/list.h. Runs on the stream; returns what cudaGetLastError says, 0 for success.
int pointwise_cuda(const Pointwise<float>& problem, int place, void* stream);
int pointwise_cuda(const Pointwise<double>& problem, int place, void* stream);
const char* cuda_error_name(int error);

}  // namespace rnnkern
