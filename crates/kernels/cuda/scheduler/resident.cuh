// The resident scheduler: what its block of threads does between ring, policy and step graphs.
//
// One block. Thread 0 does what is serial (the Rust functions of resident.ptx: claims, policy, publishing), waits and
// launches; all threads together scan slots, copy what was submitted, bind rows, write plans and read samples. Between
// two such parts the block is synchronised, so that every function here is called by all threads or, where it says so, by
// thread 0 alone.
//
// # Steps
// Step n's graph begins with a gate (gate.cu) and ends by raising `Control::done`. It is launched as soon as its plan is
// written; the gate opens when the plan is final (`armed`) and step n - 1 is done. At most two steps are launched and not
// complete, in halves n % 2 of everything that a step reads or leaves.
//
//   half n % 2 is written by the scheduler      after step n - 2 is complete (published)
//   step n runs                                 after armed >= n and done >= n - 1
//   step n is published                         after done >= n
//
// # Windows
// A kernel may launch 120 graphs; then it must launch itself again (a tail launch, which starts when this execution and all
// graphs it launched have ended). All state is in device memory. It ends with nothing in flight, so no gate waits for ever.
//
// Compiled for the device by resident.cu, and by a C++ compiler for a block of host threads in tests/scheduler: `Here` is
// what differs.
#pragma once
#include <stdint.h>

#include "../../../ring/include/izar_ring.h"
#include "args.h"
#include "records.h"
#include "sequences.cuh"

extern "C" {
IZAR_DEVICE_FUNCTION void izar_resident_open(void* core, uint64_t now_ns);
IZAR_DEVICE_FUNCTION void izar_resident_idle(void* core, uint64_t now_ns);
IZAR_DEVICE_FUNCTION uint32_t izar_resident_look(void* core, const uint32_t* candidates, uint32_t count, uint64_t now_ns);
IZAR_DEVICE_FUNCTION void izar_resident_admit(void* core, uint32_t num_events, uint64_t now_ns);
IZAR_DEVICE_FUNCTION uint32_t izar_resident_plan(void* core, uint64_t now_ns);
IZAR_DEVICE_FUNCTION void izar_resident_publish(void* core, uint64_t step, uint32_t num_samples,
                                                const izar::resident::StepTimes* times, uint64_t now_ns);
IZAR_DEVICE_FUNCTION void izar_resident_close(void* core, const uint32_t* candidates, uint32_t count, uint64_t now_ns);
}

namespace izar::resident {

// The longest a step may take.
constexpr uint64_t kStepTimeoutNs = 60'000'000'000;
constexpr uint64_t kLaunchTimeoutNs = 5'000'000'000;
constexpr uint64_t kHeartbeatNs = 50'000'000;
constexpr uint64_t kReapNs = 250'000'000;
constexpr uint32_t kIdleNapNs = 1'000;
// Polls of `done` between looks at the doorbells, where there is room for another step.
constexpr uint32_t kPollsPerLook = 4;
constexpr uint64_t kHasDetails = 128;
// Slots that a thread has under way in a scan.
constexpr uint32_t kAhead = 8;
constexpr uint32_t kScanWords = 65536 / kLanes;

enum Turn : uint32_t { kPlanOn, kAwait, kIdle, kRelaunch, kClose, kFail };

template <uint32_t kThreads>
struct Shared {
  uint32_t turn;
  uint32_t num_entries;
  uint32_t num_events;
  uint32_t num_candidates;
  uint32_t is_stopping;
  uint32_t is_complete;
  uint32_t most_blocks;
  uint32_t is_broken;
  uint32_t tokens[kThreads];
  uint32_t samples[kThreads];
  uint32_t found[kScanWords / 16];  // a bit a slot, for 4096 slots; larger rings are scanned in parts
  StepTimes times;
};

template <class Here>
struct Scheduler {
  static constexpr uint32_t kThreads = Here::kThreads;
  static constexpr uint32_t kWarps = kThreads / kLanes;
  static constexpr uint32_t kFoundSlots = kScanWords / 16 * kLanes;

  const IzarResidentArgs& a;
  Shared<kThreads>& s;
  // Thread 0's.
  uint32_t used = 0;
  uint32_t shown_idle = 0;

  IZAR_DEVICE bool leads() const { return Here::thread() == 0; }
  IZAR_DEVICE uint64_t now() const { return Here::clock_ns() + a.clock_offset_ns; }
  IZAR_DEVICE uint64_t* ring_word(uint64_t offset, uint64_t index) const {
    return reinterpret_cast<uint64_t*>(a.ring + offset) + index;
  }
  IZAR_DEVICE Sequences<Here> sequences() const { return {a}; }

  // Until the kernel has to be launched again or ends.
  IZAR_DEVICE void run() {
    if (leads() && !a.control->is_open) {
      a.control->is_open = 1;
      izar_resident_open(a.core, now());
    }
    for (;;) {
      round();
      Here::sync_block();
      const uint32_t turn = s.turn;
      Here::sync_block();
      if (turn == kAwait) await();
      if (turn == kIdle) idle();
      if (turn == kClose) close();
      if (turn == kRelaunch && leads()) relaunch();
      if (turn >= kRelaunch) return;
      if (s.is_broken) return;
    }
  }

  // Takes requests in, and plans and launches a step if there is one to launch; s.turn says what is next.
  IZAR_DEVICE void round() {
    const uint64_t begun_ns = now();
    take_in(begun_ns);
    Here::sync_block();
    Control& c = *a.control;
    if (leads()) {
      s.is_broken = 0;
      s.num_entries = 0;
      const bool has_room = c.launched - c.completed < 2 && used < a.window;
      if (has_room && !s.is_stopping) s.num_entries = izar_resident_plan(a.core, begun_ns);
    }
    Here::sync_block();
    const bool launches = s.num_entries > 0;
    if (launches) {
      write_plan(c.launched + 1);
      bind_rows();
      Here::sync_block();
    }
    if (leads()) {
      s.turn = kPlanOn;
      if (launches) launch(begun_ns);
      if (s.turn == kPlanOn) s.turn = next_turn(launches);
    }
  }

  // Thread 0.
  IZAR_DEVICE uint32_t next_turn(bool launched_one) const {
    const uint64_t in_flight = a.control->launched - a.control->completed;
    if (in_flight == 0) {
      if (s.is_stopping) return kClose;
      return used * 2 > a.window ? kRelaunch : kIdle;
    }
    return in_flight == 2 || !launched_one ? kAwait : kPlanOn;
  }

  // ---- what front ends want ----

  IZAR_DEVICE void take_in(uint64_t now_ns) {
    Control& c = *a.control;
    bool has_news = false;
    for (uint32_t lease = Here::thread(); lease < a.num_leases; lease += kThreads) {
      has_news |= doorbell(lease) != c.doorbells[lease];
    }
    if (Here::thread() == kThreads - 1) s.is_stopping = Here::load_relaxed_sys(&a.status->stop) != 0;
    has_news |= leads() && now_ns - c.looked_ns > kReapNs;
    if (!Here::any_in_block(has_news)) return;
    for (uint32_t lease = Here::thread(); lease < a.num_leases; lease += kThreads) c.doorbells[lease] = doorbell(lease);
    const uint64_t begun_ns = Here::clock_ns();
    scan();
    if (leads()) {
      const uint64_t scan_ns = Here::clock_ns() - begun_ns;
      c.max_scan_ns = scan_ns > c.max_scan_ns ? scan_ns : c.max_scan_ns;
      c.looked_ns = now_ns;
      s.num_events = izar_resident_look(a.core, a.candidates, s.num_candidates, now_ns);
    }
    Here::sync_block();
    if (s.num_events == 0) return;
    copy_submitted();
    Here::sync_block();
    if (leads()) izar_resident_admit(a.core, s.num_events, now_ns);
  }

  IZAR_DEVICE uint64_t doorbell(uint32_t lease) const {
    const uint64_t at = a.leases_offset + uint64_t{lease} * IZAR_RING_LEASE_BYTES + IZAR_RING_LEASE_DOORBELL;
    // SYNC doorbell-rung: as in `EngineRing::notice_doorbell`, which acquires again before anything is believed.
    return Here::load_acquire_sys(ring_word(at, 0));
  }

  // Slots that may have news into `candidates`, in their order. What is found here is looked at again by `look`.
  IZAR_DEVICE void scan() {
    if (leads()) s.num_candidates = 0;
    for (uint32_t first = 0; first < a.num_slots; first += kFoundSlots) {
      Here::sync_block();
      for (uint32_t i = Here::thread(); i < kFoundSlots; i += kAhead * kThreads) look_ahead(first, i);
      Here::sync_block();
      collect(first);
    }
    Here::sync_block();
  }

  // kAhead slots of a thread at once: the ring is far, and their words are under way together.
  IZAR_DEVICE void look_ahead(uint32_t first, uint32_t i) {
    uint64_t words[kAhead];
    uint32_t wanted[kAhead];
    for (uint32_t k = 0; k < kAhead; ++k) {
      const uint32_t slot = first + i + k * kThreads;
      // Past the end: another generation than any word's is wanted of it.
      words[k] = slot < a.num_slots ? Here::load_relaxed_sys(ring_word(a.progress_offset, 2 * uint64_t{slot})) : 0;
    }
    for (uint32_t k = 0; k < kAhead; ++k) {
      const uint32_t slot = first + i + k * kThreads;
      const uint32_t state = words[k] & 0xFF;
      wanted[k] = static_cast<uint32_t>(words[k] >> IZAR_RING_GENERATION_SHIFT) + (state == IZAR_RING_STATE_EMPTY ? 1 : 0);
      const uint64_t offset = state == IZAR_RING_STATE_EMPTY              ? a.submit_offset
                              : state == IZAR_RING_STATE_DECODE_COMPLETED ? a.recycle_offset
                                                                          : a.cancel_offset;
      words[k] = slot < a.num_slots ? Here::load_relaxed_sys(ring_word(offset, slot)) : ~uint64_t{wanted[k]} << 32;
    }
    for (uint32_t k = 0; k < kAhead; ++k) {
      const uint32_t bits = Here::ballot(static_cast<uint32_t>(words[k] >> IZAR_RING_GENERATION_SHIFT) == wanted[k]);
      const uint32_t place = i + k * kThreads;
      if (place % kLanes == 0 && place < kFoundSlots) s.found[place / kLanes] = bits;
    }
  }

  // From bits to slots. Each thread has its words, and counts what those before it have.
  IZAR_DEVICE void collect(uint32_t first) {
    constexpr uint32_t kWords = kFoundSlots / kLanes;
    const uint32_t base = s.num_candidates;
    Here::sync_block();
    for (uint32_t word = Here::thread(); word < kWords; word += kThreads) {
      uint32_t bits = s.found[word];
      if (bits == 0 && word + 1 < kWords) continue;
      uint32_t place = base;
      for (uint32_t before = 0; before < word; ++before) place += Here::count_bits(s.found[before]);
      for (; bits != 0; bits &= bits - 1) a.candidates[place++] = first + word * kLanes + Here::lowest_bit(bits);
      if (word + 1 == kWords) s.num_candidates = place;
    }
  }

  // Records and spans of submitted slots, a warp a slot.
  IZAR_DEVICE void copy_submitted() const {
    for (uint32_t i = Here::thread() / kLanes; i < s.num_events; i += kWarps) {
      if (a.events[i].kind != kSubmitted) continue;
      const uint32_t slot = a.events[i].slot;
      copy_words(a.requests_offset + uint64_t{slot} * IZAR_RING_REQUEST_BYTES, IZAR_RING_REQUEST_BYTES);
      Here::sync_warp();
      const IzarRingRequestRecord& r = sequences().request(slot);
      copy_span(r.prompt, 4);
      copy_span(r.stop_ids, 4);
      copy_span(r.bad_words, 4);
      copy_span(r.allowed_ids, 4);
      copy_span(r.logit_bias, 8);
      Here::sync_warp();
    }
  }

  // A span that is not inside the input arena is not copied; the claim refuses it.
  IZAR_DEVICE void copy_span(const IzarRingSpan& span, uint32_t element_bytes) const {
    const uint64_t bytes = uint64_t{span.len} * element_bytes;
    if (span.offset % 8 != 0 || span.offset < a.input_offset || span.offset > a.output_offset ||
        bytes > a.output_offset - span.offset) {
      return;
    }
    copy_words(span.offset, bytes);
  }

  IZAR_DEVICE void copy_words(uint64_t offset, uint64_t bytes) const {
    uint64_t* to = reinterpret_cast<uint64_t*>(a.submitted + offset);
    for (uint64_t i = Here::thread() % kLanes; i < (bytes + 7) / 8; i += kLanes) {
      to[i] = Here::load_relaxed_sys(ring_word(offset, i));
    }
  }

  // ---- a step's plan ----

  // The policy's plan as the step's kernels read it (expand_plan.cu), into half step % 2.
  IZAR_DEVICE void write_plan(uint64_t step) {
    const PlanHeader& h = *a.plan_header;
    const uint32_t n = h.num_entries;
    const uint32_t half = step % 2;
    uint32_t* plan = a.plans[half];
    const uint32_t tokens_at = 16 + 8 * n;
    const uint32_t tables_at = tokens_at + h.num_tokens;
    const uint32_t own = (n + kThreads - 1) / kThreads;
    const uint32_t begin = own * Here::thread();
    const uint32_t end = begin + own < n ? begin + own : n;
    uint32_t tokens = 0, samples = 0, blocks = 0;
    for (uint32_t i = begin; i < end; ++i) {
      const PlanEntry& e = a.plan_entries[i];
      tokens += e.num_tokens;
      samples += e.flags & kSamples ? 1 : 0;
      blocks = e.num_blocks > blocks ? e.num_blocks : blocks;
    }
    if (leads()) s.most_blocks = 0;
    s.tokens[Here::thread()] = tokens;
    s.samples[Here::thread()] = samples;
    running_sums();
    if (blocks > 0) Here::max_shared(&s.most_blocks, blocks);
    uint32_t token = s.tokens[Here::thread()] - tokens;
    uint32_t sample = s.samples[Here::thread()] - samples;
    for (uint32_t i = begin; i < end; ++i) {
      const PlanEntry& e = a.plan_entries[i];
      const bool is_sampled = e.flags & kSamples;
      uint32_t* to = plan + 16 + 8 * i;
      to[0] = e.row;
      to[1] = e.start;
      to[2] = e.num_tokens;
      to[3] = token;
      to[4] = e.num_blocks;
      to[5] = is_sampled ? sample : ~0u;
      if (is_sampled) a.sample_slots[half * a.max_num_seqs + sample] = e.slot;
      token += e.num_tokens;
      sample += is_sampled ? 1 : 0;
    }
    Here::sync_block();
    const uint32_t width = s.most_blocks;
    if (leads()) {
      const uint32_t words[16] = {n, h.num_tokens, h.num_decodes, h.num_samples, static_cast<uint32_t>(step),
                                  static_cast<uint32_t>(step >> 32), tokens_at, tables_at, width};
      for (uint32_t i = 0; i < 16; ++i) plan[i] = words[i];
      a.control->num_tokens[half] = h.num_tokens;
      a.control->num_samples[half] = h.num_samples;
    }
    for (uint32_t i = Here::thread() / kLanes; i < n; i += kWarps) {
      const PlanEntry& e = a.plan_entries[i];
      copy_tokens(e, plan + tokens_at + plan[16 + 8 * i + 3]);
      uint32_t* table = plan + tables_at + uint64_t{i} * width;
      const uint32_t* from = a.block_tables + uint64_t{e.row} * a.table_width;
      for (uint32_t b = Here::thread() % kLanes; b < e.num_blocks; b += kLanes) table[b] = from[b];
    }
  }

  // s.tokens and s.samples become sums up to and including each thread's.
  IZAR_DEVICE void running_sums() {
    const uint32_t t = Here::thread();
    for (uint32_t reach = 1; reach < kThreads; reach *= 2) {
      Here::sync_block();
      const uint32_t tokens = t >= reach ? s.tokens[t - reach] : 0;
      const uint32_t samples = t >= reach ? s.samples[t - reach] : 0;
      Here::sync_block();
      s.tokens[t] += tokens;
      s.samples[t] += samples;
    }
    Here::sync_block();
  }

  // Ids of an entry; a decode's is what its row sampled last.
  IZAR_DEVICE void copy_tokens(const PlanEntry& e, uint32_t* to) const {
    for (uint32_t i = Here::thread() % kLanes; i < e.num_tokens; i += kLanes) {
      to[i] = e.flags & kPrefill ? sequences().history(e.slot, e.start + i) : 0;
    }
  }

  // Rows that change hands, a warp a row. No step in flight uses them (the policy's `rows`).
  IZAR_DEVICE void bind_rows() const {
    for (uint32_t i = Here::thread() / kLanes; i < s.num_entries; i += kWarps) {
      if (a.plan_entries[i].flags & (kFirst | kResumed)) sequences().bind(a.plan_entries[i]);
    }
  }

  // ---- steps ----

  // Thread 0; what the block wrote is there.
  IZAR_DEVICE void launch(uint64_t begun_ns) {
    Control& c = *a.control;
    const PlanHeader& h = *a.plan_header;
    const uint64_t step = c.launched + 1;
    const bool decodes_only = h.num_decodes == h.num_entries;
    const uint32_t bucket = (decodes_only ? a.decode_buckets : a.mixed_buckets)[h.num_tokens - 1];
    // SYNC step-armed: pairs with the acquire load in gate.cu, device scope. Makes the plan and the rows bound for it visible
    // before the step begins.
    Here::store_release_gpu(&c.armed, step);
    const uint64_t deadline_ns = Here::clock_ns() + kLaunchTimeoutNs;
    int error = Here::launch(a.execs[2 * bucket + step % 2]);
    while (error != 0) {
      // The launch before the last of this instance has not quite retired.
      c.num_retries += 1;
      if (Here::clock_ns() > deadline_ns) return fail(kLaunchFailed, error);
      error = Here::launch(a.execs[2 * bucket + step % 2]);
    }
    used += 1;
    c.launched = step;
    shown_idle = 0;
    c.planning_ns = now() - begun_ns;
    c.max_planning_ns = c.planning_ns > c.max_planning_ns ? c.planning_ns : c.max_planning_ns;
  }

  // Waits for the oldest step and publishes it; or returns early because a front end wants something that a step could be
  // planned for.
  IZAR_DEVICE void await() {
    if (leads()) wait_for_done();
    Here::sync_block();
    if (!s.is_complete || s.is_broken) return;
    const uint64_t step = a.control->completed + 1;
    read_samples(step);
    Here::sync_block();
    if (leads()) publish(step);
    Here::sync_block();
  }

  // Thread 0.
  IZAR_DEVICE void wait_for_done() {
    const Control& c = *a.control;
    const uint64_t step = c.completed + 1;
    const bool has_room = c.launched == step && used < a.window && !s.is_stopping;
    const uint64_t deadline_ns = Here::clock_ns() + kStepTimeoutNs;
    s.is_complete = 0;
    for (uint32_t polls = 1;; ++polls) {
      // SYNC step-done: pairs with the release store in step_mark.cu, device scope. Makes what the step left visible.
      if (Here::load_acquire_gpu(&c.done) >= step) break;
      if (polls % kPollsPerLook == 0 && has_room && has_news()) return;
      if (polls % 64 == 0 && Here::clock_ns() > deadline_ns) return fail(kStepTimeout, step);
      Here::pause();
    }
    s.is_complete = 1;
  }

  // Thread 0.
  IZAR_DEVICE bool has_news() const {
    for (uint32_t lease = 0; lease < a.num_leases; ++lease) {
      if (doorbell(lease) != a.control->doorbells[lease]) return true;
    }
    return false;
  }

  IZAR_DEVICE void read_samples(uint64_t step) {
    const uint32_t half = step % 2;
    for (uint32_t i = Here::thread(); i < a.control->num_samples[half]; i += kThreads) {
      const uint32_t place = half * a.max_num_seqs + i;
      const uint64_t head = Here::load_relaxed_sys(&a.records[place].head);
      // The low bits of the step after it, so that no record is taken for another's.
      if (head >> 40 != ((step + 1) & 0xFFFFFF)) s.is_broken = 1;
      uint64_t details = 0;
      if (head >> 32 & kHasDetails) {
        details = Here::load_relaxed_sys(reinterpret_cast<const uint64_t*>(&a.records[place].rank));
      }
      Sample& to = a.samples[i];
      to.slot = a.sample_slots[place];
      to.token = static_cast<uint32_t>(head);
      to.status = static_cast<uint32_t>(head >> 32 & 0x7F);
      to.rank = static_cast<uint32_t>(details);
      to.num_logprobs = static_cast<uint32_t>(details >> 32);
      to.first_logprob = uint64_t{place} * a.logprob_entries;
    }
    // By threads of the last warp, beside the samples.
    const uint32_t mark = kThreads - 1 - Here::thread();
    if (mark < 3) (&s.times.started_ns)[mark] = Here::load_relaxed_sys(a.marks[half] + mark) + a.clock_offset_ns;
  }

  // Thread 0.
  IZAR_DEVICE void publish(uint64_t step) {
    if (s.is_broken) return fail(kSampleAbsent, step);
    Control& c = *a.control;
    const uint64_t begun_ns = now();
    const uint32_t half = step % 2;
    s.times.planning_ns = c.planning_ns;
    s.times.publishing_ns = c.publishing_ns;
    s.times.num_tokens = c.num_tokens[half];
    if (c.finished_ns != 0) a.gaps[step % a.num_gaps] = static_cast<uint32_t>(s.times.started_ns - c.finished_ns);
    c.finished_ns = s.times.finished_ns;
    izar_resident_publish(a.core, step, c.num_samples[half], &s.times, begun_ns);
    c.completed = step;
    c.publishing_ns = now() - begun_ns;
    Status& status = *a.status;
    status.num_steps = step;
    status.num_retries = c.num_retries;
    c.max_publishing_ns = c.publishing_ns > c.max_publishing_ns ? c.publishing_ns : c.max_publishing_ns;
    status.max_planning_ns = c.max_planning_ns;
    status.max_publishing_ns = c.max_publishing_ns;
    status.max_scan_ns = c.max_scan_ns;
    Here::store_relaxed_sys(&status.heartbeat_ns, begun_ns);
    if (c.late_gate != 0) fail(kGateTimeout, c.late_gate);
  }

  // ---- ends ----

  IZAR_DEVICE void idle() {
    if (!leads()) return;
    Control& c = *a.control;
    const uint64_t now_ns = now();
    c.finished_ns = 0;
    if (!shown_idle || now_ns - c.shown_ns > kHeartbeatNs) {
      shown_idle = 1;
      c.shown_ns = now_ns;
      izar_resident_idle(a.core, now_ns);
      Here::store_relaxed_sys(&a.status->heartbeat_ns, now_ns);
    }
    Here::nap(kIdleNapNs);
  }

  IZAR_DEVICE void close() {
    scan();
    if (!leads()) return;
    izar_resident_close(a.core, a.candidates, s.num_candidates, now());
    Here::store_release_sys(&a.status->has_ended, 1);
  }

  // Thread 0. Nothing is in flight.
  IZAR_DEVICE void relaunch() {
    a.control->num_relaunches += 1;
    a.status->num_relaunches = a.control->num_relaunches;
    const int error = Here::relaunch();
    if (error != 0) fail(kRelaunchFailed, error);
  }

  // Thread 0.
  IZAR_DEVICE void fail(uint64_t error, uint64_t detail) {
    s.turn = kFail;
    s.is_broken = 1;
    a.status->detail = detail;
    a.status->error = error;
    Here::store_release_sys(&a.status->has_ended, 1);
  }
};

}  // namespace izar::resident
