// Every cell, one line each. Kernels, operators and tests follow from this list.
#pragma once

#include "euler.h"
#include "gru.h"
#include "gru_reset_before.h"
#include "hardtanh.h"
#include "identity.h"
#include "lstm.h"
#include "modrelu.h"
#include "relu.h"
#include "tanh.h"

#define RNNKERN_CELLS(X) \
  X(Tanh)                \
  X(Relu)                \
  X(Identity)            \
  X(Hardtanh)            \
  X(ModRelu)             \
  X(Euler)               \
  X(Lstm)                \
  X(Gru)                 \
  X(GruResetBefore)
