// Every cell, one line each. Kernels, operators and tests follow from this list.
#pragma once

#include "cells/euler.h"
#include "cells/gru.h"
#include "cells/gru_reset_before.h"
#include "cells/hardtanh.h"
#include "cells/identity.h"
#include "cells/lstm.h"
#include "cells/modrelu.h"
#include "cells/relu.h"
#include "cells/tanh.h"

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
