// The GRU with layer normalisation (Ba, Kiros & Hinton 2016), r = LN(R h) + b over the units of all gates:
//   n = tanh(u_n + s(u_r + r_r) r_n),  h' = (1 - z) n + z h.
#pragma once

#include "cells/gru.h"

namespace rnnkern {

struct GruLayerNorm : CellFacts<3, 3, 1, 1, 6, false> {
  static constexpr const char* name = "gru_layer_norm";
  static constexpr bool normalised = true;

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V* old, const V* params, V* next, V* save) {
    V all[4];
    Gru::forward(u, r, old, params, next, all);
    for (int k = 0; k < 3; ++k) save[k] = all[k];
  }

  template <class V>
  RNNKERN_CELL void backward(const V* save, const V* old, const V* next, const V* params, V* grad, V* du, V* dr,
                             V* dparams) {
    const V all[4] = {save[0], save[1], save[2], save[5]};
    Gru::backward(all, old, next, params, grad, du, dr, dparams);
  }
};

}  // namespace rnnkern
