// The cells that a relevancy recurrence can have.
#pragma once

#include "cells/lstm.h"
#include "cells/modrelu.h"
#include "cells/relu.h"
#include "cells/tanh.h"
#include "cells/visit.h"

#define RNNKERN_RELEVANCY_CELLS(X) \
  X(Tanh)                          \
  X(Relu)                          \
  X(ModRelu)                       \
  X(Lstm)

namespace rnnkern::relevancy {

RNNKERN_CELL_VISITOR(visit_cell, RNNKERN_RELEVANCY_CELLS)

}  // namespace rnnkern::relevancy
