// Every cell, one line each. Kernels, operators and tests follow from these lists.
#pragma once

#include "cells/complex_modrelu.h"
#include "cells/euler.h"
#include "cells/goru.h"
#include "cells/gru.h"
#include "cells/gru_reset_before.h"
#include "cells/hardtanh.h"
#include "cells/identity.h"
#include "cells/lstm.h"
#include "cells/lstm_projected.h"
#include "cells/modrelu.h"
#include "cells/relu.h"
#include "cells/tanh.h"

// Those that a GPU keeps R for, where it fits.
#define RNNKERN_CELLS(X) \
  X(Tanh)                \
  X(Relu)                \
  X(Identity)            \
  X(Hardtanh)            \
  X(ModRelu)             \
  X(Euler)               \
  X(Lstm)                \
  X(Gru)                 \
  X(GruResetBefore)      \
  X(Goru)                \
  X(ComplexModRelu)

// All: the same, and after them the one that a GPU takes step by step.
#define RNNKERN_ALL_CELLS(X) \
  RNNKERN_CELLS(X)           \
  X(LstmProjected)
