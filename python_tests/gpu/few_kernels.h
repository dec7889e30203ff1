// Included before each source of a library of drivers: it gets the kernels of a few cells, in the smallest size of
// each, because more take minutes to compile for the thread sanitizer.
#pragma once

#include "cells/list.h"
#include "cuda/kernels.h"

#undef RNNKERN_CELLS
#define RNNKERN_CELLS(X) X(Lstm) X(GruResetBefore)
#undef RNNKERN_ALL_CELLS
#define RNNKERN_ALL_CELLS(X) RNNKERN_CELLS(X) X(LstmProjected)

namespace rnnkern::cuda {

template <int least, int...>
using Least = Sizes<least>;

}  // namespace rnnkern::cuda
#define Sizes Least
