// The LSTM with layer normalisation (Ba, Kiros & Hinton 2016, eqs. 20-22), r = LN(R h) + b over the units of all gates:
//   c' = s(f) c + s(i) tanh(g),  h' = s(o) tanh(LN(c')),  each gate's argument u + r.  c' itself is carried.
#pragma once

#include "cells/cell.h"

namespace rnnkern {

struct LstmLayerNorm : CellFacts<4, 4, 2, 3, 8, false> {
  static constexpr const char* name = "lstm_layer_norm";
  static constexpr bool normalised = true;

  template <class V>
  RNNKERN_CELL void forward(const V* u, const V* r, const V* old, const V*, V* next, V* save) {
    save[0] = sigmoid(u[0] + r[0]);
    save[1] = sigmoid(u[1] + r[1]);
    save[2] = tanh(u[2] + r[2]);
    save[3] = sigmoid(u[3] + r[3]);
    next[1] = c_of(save, old);
  }

  template <class V>
  RNNKERN_CELL V c_of(const V* save, const V* old) {
    return save[1] * old[1] + save[0] * save[2];
  }

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
    const V i = save[0], f = save[1], g = save[2], o = save[3], dc = grad[1];
    du[0] = dr[0] = dc * g * i * (V(1) - i);
    du[1] = dr[1] = dc * old[1] * f * (V(1) - f);
    du[2] = dr[2] = dc * i * (V(1) - g * g);
    du[3] = dr[3] = grad[0] * tanh(next[1]) * o * (V(1) - o);
    grad[0] = V(0);
    grad[1] = dc * f;
  }
};

}  // namespace rnnkern
