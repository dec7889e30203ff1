// h = modrelu(z; b) for numbers of one (real) or two (complex) parts, and its backward, for a scalar or SIMD vector
// type V. Uses the equations of the cells, for complex numbers one part at a time.
#pragma once

#include "cells/complex_modrelu.h"
#include "cells/modrelu.h"

namespace rnnkern {

// The results of the complex cell for z.
template <class V>
struct ComplexActivation {
  V next[1], saved[3];  // the real part of the result; its length over z's, and the parts of z / |z|
};

template <class V>
RNNKERN_CELL ComplexActivation<V> complex_activation(const V (&z)[2], V bias) {
  ComplexActivation<V> found;
  const V none[2] = {V(0), V(0)};
  ComplexModRelu::forward(z, none, static_cast<const V*>(nullptr), &bias, found.next, found.saved);
  return found;
}

// Replaces z by h.
template <class V, int parts>
RNNKERN_CELL void activate(V (&z)[parts], V bias) {
  if constexpr (parts == 1) {
    z[0] = ModRelu::of(z[0], bias);
  } else {
    const auto found = complex_activation(z, bias);
    z[0] = found.next[0];
    z[1] = found.saved[0] * z[1];
  }
}

// Replaces the gradient of h by that of z; returns that of b.
template <class V, int parts>
RNNKERN_CELL V activate_back(const V (&z)[parts], V bias, V (&grad)[parts]) {
  V to_bias(0);
  if constexpr (parts == 1) {
    grad[0] = ModRelu::backward_of(ModRelu::of(z[0], bias), grad[0], to_bias);
  } else {
    const auto found = complex_activation(z, bias);
    const V* const saved = found.saved;
    const V exchanged[3] = {saved[0], saved[2], saved[1]}, *const none = nullptr;
    V of_real[2], of_imag[2], unused[2];
    ComplexModRelu::backward(saved, none, none, none, &grad[0], of_real, unused, &to_bias);
    ComplexModRelu::backward(exchanged, none, none, none, &grad[1], of_imag, unused, &to_bias);
    grad[0] = of_real[0] + of_imag[1];
    grad[1] = of_real[1] + of_imag[0];
  }
  return to_bias;
}

}  // namespace rnnkern
