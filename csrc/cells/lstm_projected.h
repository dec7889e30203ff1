// The LSTM with a projected state (Sak et al. 2014), torch.nn.LSTM with proj_size P:
//   c' = s(f) c + s(i) tanh(g),  h' = W_hr (s(o) tanh(c')),  each gate's argument u + r,  h (P,), c (H,).
#pragma once

#include "cells/lstm.h"

namespace rnnkern {

struct LstmProjected : Lstm {
  static constexpr const char* name = "lstm_projected";
  static constexpr bool projected = true;

  // What W_hr multiplies.
  template <class V>
  RNNKERN_CELL V unprojected(const V* save, const V* old) {
    return save[3] * tanh(next_c(save, old));
  }
};

}  // namespace rnnkern
