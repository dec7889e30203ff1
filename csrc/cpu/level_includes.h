// What stands first in every level source, before the `#pragma GCC target`: all that kernels use of the standard
// library and of the code that other sources share, so that none of it is compiled for a processor that may not be
// there.
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
