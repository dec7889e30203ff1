// What the interpreter says of a place, of a thread, and of a deadlock. Included by fibers.cpp alone.
#pragma once

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "interpreter/fibers.h"

namespace rnnkern::device {
namespace {

std::string at(Place place) {
  return std::string(place.file_name()) + ":" + std::to_string(place.line()) + ":" + std::to_string(place.column());
}

bool same(Place a, Place b) {
  return a.line() == b.line() && a.column() == b.column() && std::strcmp(a.file_name(), b.file_name()) == 0;
}

std::string who(const Fiber& fiber) {
  return "block " + std::to_string(fiber.block->index) + " thread " + std::to_string(fiber.thread);
}

// The threads that wait, by what they wait for and where.
std::string deadlock(const std::vector<Fiber*>& fibers) {
  struct Group {
    const Fiber* first;
    size_t count;
  };
  std::vector<Group> groups;
  size_t ended = 0;
  for (const Fiber* fiber : fibers) {
    if (fiber->done) {
      ++ended;
      continue;
    }
    const auto known = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
      return group.first->waits_for == fiber->waits_for && same(group.first->place, fiber->place) &&
             group.first->block == fiber->block;
    });
    if (known == groups.end()) {
      groups.push_back({fiber, 1});
    } else {
      ++known->count;
    }
  }
  std::string report = "deadlock: " + std::to_string(fibers.size() - ended) + " of " + std::to_string(fibers.size()) +
                       " threads are stuck, " + std::to_string(ended) + " have ended";
  constexpr size_t most = 8;
  for (size_t k = 0; k < std::min(groups.size(), most); ++k) {
    const Fiber& first = *groups[k].first;
    report += "\n  " + std::to_string(groups[k].count) + " in " + first.waits_for + " at " + at(first.place) +
              ", first " + who(first);
    if (const Mbarrier* barrier = first.barrier) {
      report += "; its phase of parity " + std::to_string(barrier->phase) + " lacks " +
                std::to_string(barrier->pending) + " of " + std::to_string(barrier->arrivals) + " arrivals and " +
                std::to_string(barrier->bytes) + " bytes";
    }
  }
  if (groups.size() > most) report += "\n  and " + std::to_string(groups.size() - most) + " more places";
  return report;
}

}  // namespace
}  // namespace rnnkern::device
