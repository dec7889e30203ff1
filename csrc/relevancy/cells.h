// The cells that a relevancy recurrence can have.
#pragma once

#include "cells/lstm.h"
#include "cells/modrelu.h"
#include "cells/relu.h"
#include "cells/tanh.h"

#define RNNKERN_RELEVANCY_CELLS(X) \
  X(Tanh)                          \
  X(Relu)                          \
  X(ModRelu)                       \
  X(Lstm)
