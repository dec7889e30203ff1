// Included first in every level source, before `#pragma GCC target`: the standard library headers and shared code that
// kernels use. This keeps shared inline functions from being compiled for instructions that the processor may lack.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <new>
#include <optional>
#include <type_traits>
#include <utility>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "cells/math.h"
#include "common/simd_level.h"
#include "common/team.h"
#include "device/types.h"
