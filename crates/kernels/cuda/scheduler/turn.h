// When a step may run: the one condition that gates wait for, on the device (gate.cu) and in simulation.
#pragma once
#include <stdint.h>

#ifndef IZAR_DEVICE
#define IZAR_DEVICE __device__
#endif

namespace izar::resident {

// `armed`: the last step whose plan is final. `done`: the last step that is complete. Steps count from 1.
IZAR_DEVICE inline bool may_run(uint64_t step, uint64_t armed, uint64_t done) { return armed >= step && done + 1 >= step; }

}  // namespace izar::resident
