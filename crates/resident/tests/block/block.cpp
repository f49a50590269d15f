// The scheduler's block, and the graphs it launches, as fibers of one thread: the device in simulation.
//
// Every thread of the block and every launched graph is a fiber. Where device code loads, polls, waits or launches, the
// fiber yields, and chance (a seed) picks the next: the block's threads run in any order between two barriers, and graphs
// start, run, raise `done` and retire at any moment that the device allows. What CUDA forbids ends the simulation with a
// message: too many launches of one execution, a launch while the instance runs (an error that may be retried), a launch of
// itself that waits for a graph that waits for it. So does what the protocol promises: steps in order and one at a time, no
// plan that changes under a step.
//
// A step computes a real thing: KV of a token is the token, and a sample is a hash of the whole sequence as read through the
// block table. So a wrong plan, table, history or binding gives a wrong token.
#include "host.h"

#include <ucontext.h>

#include <algorithm>
#include <chrono>
#include <cstdarg>
#include <cstdio>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "../../../kernels/cuda/scheduler/resident.cuh"
#include "../../../kernels/cuda/scheduler/turn.h"

// Mirrored by `Simulation` of main.rs.
struct IzarSimulation {
  IzarResidentArgs args;
  void (*open)(void*, uint64_t);
  void (*idle)(void*, uint64_t);
  uint32_t (*look)(void*, const uint32_t*, uint32_t, uint64_t);
  void (*admit)(void*, uint32_t, uint64_t);
  uint32_t (*plan)(void*, uint64_t);
  void (*publish)(void*, uint64_t, uint32_t, const izar::resident::StepTimes*, uint64_t);
  void (*close)(void*, const uint32_t*, uint32_t, uint64_t);
  uint32_t* kv;  // [blocks * 16]: the token of each position
  uint64_t seed;
  uint32_t num_buckets;
  uint32_t launch_limit;  // of one execution
  uint32_t mutation;      // of Mutation
  uint32_t reserved;
  char* message;  // [256]
};

namespace {

using namespace izar::resident;

enum Mutation : uint32_t {
  kNone = 0,
  kGateIgnoresDone = 1,   // gates open as soon as a plan is final
  kDoneIsEarly = 2,       // `done` is raised before the samples are written
};

constexpr uint32_t kThreadsOfBlock = 64;
constexpr size_t kStackBytes = 256 << 10;
// Picks without any progress that are a deadlock.
constexpr uint64_t kPatience = 4'000'000;

struct Fiber {
  ucontext_t context;
  std::vector<char> stack = std::vector<char>(kStackBytes);
  std::function<void()> body;
  bool ended = false;
  uint32_t thread = 0;
  // Waits at a barrier until its number has passed.
  uint64_t* barrier = nullptr;
  uint64_t awaited = 0;
};

struct Barrier {
  uint64_t passed = 0;
  uint32_t arrived = 0;
};

struct Simulator {
  IzarSimulation* given = nullptr;
  std::mt19937_64 random;
  ucontext_t main;
  std::vector<std::unique_ptr<Fiber>> fibers;
  Fiber* current = nullptr;
  bool failed = false;
  // The block.
  Barrier block;
  Barrier warps[kThreadsOfBlock / 32];
  bool votes[kThreadsOfBlock];
  uint32_t launches = 0;
  bool relaunches = false;
  // Graphs.
  std::vector<uint8_t> busy;
  uint32_t graphs = 0;
  uint64_t running = 0;
  uint64_t last_run = 0;
  uint64_t progress = 0;
};

Simulator* sim;

void fail(const char* format, ...) {
  if (!sim->failed) {
    va_list list;
    va_start(list, format);
    vsnprintf(sim->given->message, 256, format, list);
    va_end(list);
  }
  sim->failed = true;
}

void yield() { swapcontext(&sim->current->context, &sim->main); }

void maybe_yield() {
  if (sim->random() % 8 == 0) yield();
}

void entry() {
  Fiber* own = sim->current;
  own->body();
  own->ended = true;
  yield();
}

Fiber& spawn(std::function<void()> body) {
  auto fiber = std::make_unique<Fiber>();
  fiber->body = std::move(body);
  getcontext(&fiber->context);
  fiber->context.uc_stack.ss_sp = fiber->stack.data();
  fiber->context.uc_stack.ss_size = kStackBytes;
  fiber->context.uc_link = nullptr;
  makecontext(&fiber->context, entry, 0);
  sim->fibers.push_back(std::move(fiber));
  return *sim->fibers.back();
}

void wait_at(Barrier& barrier, uint32_t size) {
  const uint64_t number = barrier.passed;
  if (++barrier.arrived == size) {
    barrier.arrived = 0;
    barrier.passed += 1;
    sim->progress += 1;
    maybe_yield();
    return;
  }
  sim->current->barrier = &barrier.passed;
  sim->current->awaited = number;
  yield();
}

uint64_t clock_now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

int launch_graph(const void* exec);

struct Here {
  static constexpr uint32_t kThreads = kThreadsOfBlock;

  static uint32_t thread() { return sim->current->thread; }
  static void sync_block() { wait_at(sim->block, kThreads); }
  static void sync_warp() { wait_at(sim->warps[thread() / 32], 32); }
  static bool any_in_block(bool value) {
    sim->votes[thread()] = value;
    sync_block();
    bool any = false;
    for (bool vote : sim->votes) any |= vote;
    sync_block();
    return any;
  }
  static uint32_t ballot(bool value) {
    sim->votes[thread()] = value;
    sync_warp();
    uint32_t bits = 0;
    for (uint32_t lane = 0; lane < 32; ++lane) bits |= uint32_t{sim->votes[thread() / 32 * 32 + lane]} << lane;
    sync_warp();
    return bits;
  }
  static uint32_t count_bits(uint32_t bits) { return __builtin_popcount(bits); }
  static uint32_t lowest_bit(uint32_t bits) { return __builtin_ctz(bits); }
  static void max_shared(uint32_t* to, uint32_t value) { *to = value > *to ? value : *to; }
  static void or_global(uint32_t* to, uint32_t value) { *to |= value; }
  static void add_global(uint32_t* to, uint32_t value) { *to += value; }
  static uint64_t load_acquire_sys(const uint64_t* at) { return __atomic_load_n(at, __ATOMIC_ACQUIRE); }
  static uint64_t load_relaxed_sys(const uint64_t* at) { return __atomic_load_n(at, __ATOMIC_RELAXED); }
  static uint64_t load_acquire_gpu(const uint64_t* at) {
    maybe_yield();
    return *at;
  }
  static void store_release_gpu(uint64_t* at, uint64_t value) {
    *at = value;
    maybe_yield();
  }
  static void store_release_sys(uint64_t* at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELEASE); }
  static void store_relaxed_sys(uint64_t* at, uint64_t value) { __atomic_store_n(at, value, __ATOMIC_RELAXED); }
  static uint64_t clock_ns() { return clock_now(); }
  static void pause() { yield(); }
  static void nap(uint32_t) { yield(); }
  static int launch(const void* exec) {
    maybe_yield();
    return launch_graph(exec);
  }
  static int relaunch() {
    sim->relaunches = true;
    return 0;
  }
};

// A hash of everything the sequence holds; main.rs has the same.
uint32_t next_token(uint64_t hash, uint32_t vocab_size) { return static_cast<uint32_t>((hash >> 20) % vocab_size); }
uint64_t hash_token(uint64_t hash, uint32_t token) { return (hash ^ (token + 1)) * 0x100000001B3; }
constexpr uint64_t kHashStart = 0xCBF29CE484222325;

struct Plan {
  uint32_t* words;
  uint32_t operator[](uint32_t i) const { return words[i]; }
  uint64_t step() const { return words[4] | uint64_t{words[5]} << 32; }
  const uint32_t* entry(uint32_t i) const { return words + 16 + 8 * i; }
  const uint32_t* table(uint32_t i) const { return words + words[7] + i * words[8]; }
  uint32_t size() const { return words[7] + words[0] * words[8]; }
  uint64_t checksum() const {
    uint64_t sum = kHashStart;
    for (uint32_t i = 0; i < size(); ++i) sum = hash_token(sum, words[i]);
    return sum;
  }
};

// The forward pass: KV is written, then every entry that samples gives its token.
void compute(const Plan& plan, std::vector<SampleRecord>& records) {
  const IzarResidentArgs& a = sim->given->args;
  uint32_t* kv = sim->given->kv;
  records.assign(plan[3], SampleRecord{});
  for (uint32_t i = 0; i < plan[0]; ++i) {
    const uint32_t *e = plan.entry(i), *table = plan.table(i);
    for (uint32_t t = 0; t < e[2]; ++t) {
      const uint32_t position = e[1] + t;
      if (position / 16 >= e[4]) return fail("step %lu: position %u beyond %u blocks", plan.step(), position, e[4]);
      kv[table[position / 16] * 16 + position % 16] = i < plan[2] ? a.rows.last_tokens[e[0]] : plan[plan[6] + e[3] + t];
    }
  }
  for (uint32_t i = 0; i < plan[0]; ++i) {
    const uint32_t *e = plan.entry(i), *table = plan.table(i);
    if (e[5] == ~0u) continue;
    uint64_t hash = kHashStart;
    for (uint32_t position = 0; position < e[1] + e[2]; ++position) {
      hash = hash_token(hash, kv[table[position / 16] * 16 + position % 16]);
    }
    izar::sampler::Row& row = a.rows.rows[e[0]];
    const uint32_t token = next_token(hash ^ row.philox_key[0], a.rows.vocab_size);
    a.rows.last_tokens[e[0]] = token;
    row.num_generated += 1;
    const uint32_t status = row.num_generated >= row.max_tokens ? izar::sampler::kMaxTokens : izar::sampler::kToken;
    records[e[5]].head = token | uint64_t{status} << 32 | (plan.step() + 1) << 40;
  }
}

void run_graph(uint32_t exec) {
  const IzarResidentArgs& a = sim->given->args;
  const uint32_t half = exec % 2;
  const Plan plan{a.plans[half]};
  const uint64_t step = plan.step();
  const uint32_t mutation = sim->given->mutation;
  // A graph begins when it begins.
  for (uint64_t wait = sim->random() % 16; wait > 0; --wait) yield();
  while (!may_run(step, a.control->armed, mutation == kGateIgnoresDone ? step : a.control->done)) yield();
  if (sim->running != 0) fail("step %lu runs beside step %lu", step, sim->running);
  if (step != sim->last_run + 1) fail("step %lu runs after step %lu", step, sim->last_run);
  sim->running = sim->last_run = step;
  const uint64_t sum = plan.checksum();
  std::vector<SampleRecord> records;
  compute(plan, records);
  for (uint64_t wait = sim->random() % 64; wait > 0; --wait) yield();
  if (plan.checksum() != sum || plan.step() != step) fail("the plan of step %lu changed while it ran", step);
  if (mutation == kDoneIsEarly) a.control->done = step;
  if (mutation == kDoneIsEarly) yield();
  for (uint32_t i = 0; i < records.size(); ++i) {
    const_cast<SampleRecord*>(a.records)[half * a.max_num_seqs + i] = records[i];
  }
  sim->running = 0;
  a.control->done = step;
  sim->progress += 1;
  // Now and then it is long in retiring, so that the next launch of this instance comes too early.
  for (uint64_t wait = sim->random() % 8 == 0 ? 2000 : 8; wait > 0; --wait) yield();
  sim->busy[exec] = 0;
  sim->graphs -= 1;
}

int launch_graph(const void* exec) {
  const uint32_t index = static_cast<uint32_t>(reinterpret_cast<uintptr_t>(exec)) - 1;
  if (index >= 2 * sim->given->num_buckets) fail("there is no graph %u", index);
  if (sim->launches == sim->given->launch_limit) {
    fail("an execution launches more than %u graphs", sim->given->launch_limit);
    return 0;
  }
  if (sim->busy[index]) return 1;
  sim->busy[index] = 1;
  sim->launches += 1;
  sim->graphs += 1;
  sim->progress += 1;
  spawn([index] { run_graph(index); });
  return 0;
}

Shared<kThreadsOfBlock> shared;

void start_block() {
  sim->launches = 0;
  sim->relaunches = false;
  sim->block = Barrier{};
  for (Barrier& warp : sim->warps) warp = Barrier{};
  for (uint32_t thread = 0; thread < kThreadsOfBlock; ++thread) {
    spawn([] {
      Scheduler<Here> scheduler{sim->given->args, shared};
      scheduler.run();
      sim->progress += 1;
    }).thread = thread;
  }
}

bool is_ready(const Fiber& fiber) { return !fiber.ended && (!fiber.barrier || *fiber.barrier != fiber.awaited); }

// Until no fiber is left, or no progress is made.
void run_fibers() {
  uint64_t seen = sim->progress, picks = 0;
  while (!sim->failed) {
    std::erase_if(sim->fibers, [](const auto& fiber) { return fiber->ended; });
    if (sim->fibers.empty()) return;
    std::vector<Fiber*> ready;
    for (auto& fiber : sim->fibers) {
      if (is_ready(*fiber)) ready.push_back(fiber.get());
    }
    if (ready.empty()) return fail("all threads wait for each other");
    // A stretch for each of them, in random order.
    std::shuffle(ready.begin(), ready.end(), sim->random);
    for (Fiber* fiber : ready) {
      sim->current = fiber;
      fiber->barrier = nullptr;
      swapcontext(&sim->main, &fiber->context);
      if (sim->failed) return;
    }
    picks = sim->progress == seen ? picks + 1 : 0;
    seen = sim->progress;
    if (picks > kPatience) return fail("nothing happens any more");
  }
}

}  // namespace

extern "C" {
void izar_resident_open(void* core, uint64_t now_ns) { sim->given->open(core, now_ns); }
void izar_resident_idle(void* core, uint64_t now_ns) { sim->given->idle(core, now_ns); }
uint32_t izar_resident_look(void* core, const uint32_t* candidates, uint32_t count, uint64_t now_ns) {
  return sim->given->look(core, candidates, count, now_ns);
}
void izar_resident_admit(void* core, uint32_t num_events, uint64_t now_ns) { sim->given->admit(core, num_events, now_ns); }
uint32_t izar_resident_plan(void* core, uint64_t now_ns) { return sim->given->plan(core, now_ns); }
void izar_resident_publish(void* core, uint64_t step, uint32_t num_samples, const StepTimes* times, uint64_t now_ns) {
  sim->given->publish(core, step, num_samples, times, now_ns);
}
void izar_resident_close(void* core, const uint32_t* candidates, uint32_t count, uint64_t now_ns) {
  sim->given->close(core, candidates, count, now_ns);
}

// Runs the scheduler until it ends; 0 if it kept every promise, else the message says which it broke.
int izar_simulate(IzarSimulation* given) {
  Simulator simulator;
  sim = &simulator;
  simulator.given = given;
  simulator.random.seed(given->seed);
  simulator.busy.resize(2 * given->num_buckets);
  do {
    start_block();
    // An execution has ended when its block and the graphs it launched have.
    run_fibers();
  } while (simulator.relaunches && !simulator.failed);
  sim = nullptr;
  return simulator.failed ? 1 : 0;
}
}
