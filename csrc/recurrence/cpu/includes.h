// All that the level files need from outside their own code; it stands before their `#pragma GCC target`.
#pragma once

#include "cpu/level_includes.h"
#include "recurrence/problem.h"
