// The LSTM with layer normalisation (Ba, Kiros & Hinton 2016, eqs. 20-22), r = LN(R h) + b over the units of all gates:
//   c' = s(f) c + s(i) tanh(g),  h' = s(o) tanh(LN(c')),  each gate's argument u + r.  c' itself is carried.
#pragma once

#include "cells/lstm.h"

namespace rnnkern {

struct LstmLayerNorm : Lstm {
  static constexpr const char* name = "lstm_layer_norm";
  static constexpr int params = 3, saved = 8;
  static constexpr bool joint = false, normalised = true;

  template <class V>
  RNNKERN_CELL V output(const V* save, V y) {
    return save[3] * tanh(y);
  }

  template <class V>
  RNNKERN_CELL V output_backward(const V* save, V y, V dh) {
    const V t = tanh(y);
    return dh * save[3] * (V(1) - t * t);
  }

  template <class V>
  RNNKERN_CELL void backward(const V* save, const V* old, const V* next, const V*, V* grad, V* du, V* dr, V*) {
    backward_of(save, old, tanh(next[1]), grad[1], grad, du, dr);
  }
};

}  // namespace rnnkern
