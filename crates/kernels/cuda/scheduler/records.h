// What host, scheduler kernel, step graphs and the Rust code in resident.ptx tell each other: plain words, no code.
// Mirrored by izar_resident (Event to PlanEntry) and izar_kernels::resident (the rest).
#pragma once
#include <stddef.h>
#include <stdint.h>

namespace izar::resident {

// Something a front end wants.
struct Event {
  uint32_t slot;
  uint32_t kind;
};
enum EventKind : uint32_t { kSubmitted = 0, kCancelled = 1 };

// What is kept of a sequence.
struct Live {
  uint64_t seed;
  uint32_t is_live;
  uint32_t num_generated;
  uint32_t stop_token;
  uint32_t finish;
  uint32_t error;
  uint32_t num_bad_words;
  uint32_t longest_prefix;
  uint32_t reserved;
  uint64_t deferred_since_ns;
};
static_assert(sizeof(Live) == 48);

struct Sample {
  uint32_t slot;
  uint32_t token;
  uint32_t status;
  uint32_t rank;
  uint64_t first_logprob;
  uint32_t num_logprobs;
  uint32_t reserved;
};
static_assert(sizeof(Sample) == 32);

struct StepTimes {
  uint64_t started_ns;
  uint64_t sampling_ns;
  uint64_t finished_ns;
  uint64_t planning_ns;
  uint64_t publishing_ns;
  uint64_t num_tokens;
};
static_assert(sizeof(StepTimes) == 48);

struct PlanHeader {
  uint64_t step;
  uint64_t planned_ns;
  uint32_t num_entries;
  uint32_t num_decodes;
  uint32_t num_tokens;
  uint32_t num_samples;
  uint32_t num_admitted;
  uint32_t num_preempted;
};
static_assert(sizeof(PlanHeader) == 40);

struct PlanEntry {
  uint32_t slot;
  uint32_t row;
  uint32_t start;
  uint32_t num_tokens;
  uint32_t flags;
  uint32_t num_blocks;
  uint32_t num_new_blocks;
  uint32_t output_idx;
};
static_assert(sizeof(PlanEntry) == 32);
enum EntryFlags : uint32_t { kSamples = 1, kPrefill = 2, kFirst = 4, kResumed = 8 };

constexpr uint32_t kMaxLeases = 64;

// The scheduler's own words, in device memory. They outlive one execution of the kernel.
struct Control {
  // Written by the scheduler: steps up to this one may run once the step before them is complete.
  uint64_t armed;
  uint64_t pad0[15];
  // Written by a step's last kernel: the step.
  uint64_t done;
  uint64_t pad1[15];
  // Written by a gate that waited too long: the step.
  uint64_t late_gate;
  uint64_t launched;
  uint64_t completed;
  uint64_t planning_ns;
  uint64_t publishing_ns;
  uint64_t finished_ns;
  uint64_t num_relaunches;
  uint64_t num_retries;
  uint64_t looked_ns;
  uint64_t shown_ns;
  uint64_t max_planning_ns;
  uint64_t max_publishing_ns;
  uint64_t max_scan_ns;
  uint64_t num_scans;
  uint32_t is_open;
  uint32_t num_tokens[2];
  uint32_t num_samples[2];
  uint32_t reserved[3];
  uint64_t doorbells[kMaxLeases];
};
static_assert(sizeof(Control) == 256 + 112 + 32 + 512);

// What host and scheduler tell each other, in pinned host memory.
struct Status {
  uint64_t stop;  // the host's: end when nothing is in flight
  uint64_t pad0[15];
  uint64_t heartbeat_ns;
  uint64_t has_ended;
  uint64_t error;  // of Error; then it has ended, too
  uint64_t detail;
  uint64_t num_steps;
  uint64_t num_relaunches;
  uint64_t num_retries;
  uint64_t max_planning_ns;
  uint64_t max_publishing_ns;
  uint64_t max_scan_ns;
  uint64_t pad1[6];
};
static_assert(sizeof(Status) == 256);

enum Error : uint64_t {
  kNoError = 0,
  kLaunchFailed = 1,      // detail: the CUDA error
  kStepTimeout = 2,       // detail: the step
  kSampleAbsent = 3,      // detail: the step
  kRelaunchFailed = 4,    // detail: the CUDA error
  kGateTimeout = 5,       // detail: the step
};

// The sampler's record of one sample; see sampler/state.cuh.
struct SampleRecord {
  uint64_t head;
  uint32_t rank;
  uint32_t num_logprobs;
};
static_assert(sizeof(SampleRecord) == 16);

}  // namespace izar::resident
