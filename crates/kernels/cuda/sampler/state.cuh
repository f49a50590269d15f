// What the sampler keeps on the device, and what it tells the host. Mirrored by the Rust types of the same names.
#pragma once
#include <cstdint>

namespace izar::sampler {

enum RowFlags : uint32_t {
  kGreedy = 1,           // the largest logit always wins
  kBroken = 2,           // nothing usable is bound
  kHasMask = 4,          // the row's bit mask counts
  kCountsPrompt = 8,     // prompt tokens are in `seen`
  kCountsGenerated = 16, // generated tokens are in `seen` and `counts`
  kIgnoreEos = 32,
  kMasked = 64,          // every token waits for its own mask, which comes through the ring
};

// The sampler's state of one sequence.
struct Row {
  uint32_t flags;
  float scale;       // 1 / temperature
  float top_p;
  uint32_t top_k;    // 0 keeps all
  uint32_t max_key;  // magnitude, as bits, of the smallest scaled logit that min-p keeps
  float repetition_penalty;
  float presence_penalty;
  float frequency_penalty;
  uint32_t philox_key[2];
  uint32_t min_tokens;
  uint32_t max_tokens;
  uint32_t prompt_len;
  int32_t num_top_logprobs;  // -1: no logprobs at all
  uint32_t num_stop_ids;
  uint32_t num_biases;
  uint32_t num_bad_words;
  uint32_t num_generated;  // the sampler counts it up; all else changes by binding only
  uint32_t error;          // handed back as the rank of a broken row
  uint32_t mask_generation;  // of a masked row: what its mask word must carry
  uint64_t mask_word;        // where that word is, in mapped host memory
  uint64_t mask_area;        // where the two masks are
  uint32_t reserved[8];
};
static_assert(sizeof(Row) == 128);

// One addend; those of one token are neighbours, in the order in which they are to be added.
struct Bias {
  uint32_t token;
  float bias;
};

// A banned sequence: `last` must not follow the `prefix_len` tokens that stand `prefix_at` words into the row's lists.
struct BadWord {
  uint32_t last;
  uint32_t prefix_at;
  uint32_t prefix_len;
};

// How a row turned out.
enum Status : uint32_t {
  kToken = 1,
  kEos = 2,
  kStopToken = 3,
  kMaxTokens = 4,
  kContextEnd = 5,
  kNonFinite = 16,
  kNothingAllowed = 17,
  kRowBroken = 18,
  kDeferred = 19,
};

// Whether the mask of a masked row's next token is there.
enum MaskState : uint32_t {
  kMaskAwaited = 0,
  kMaskOpen = 1,   // it allows everything
  kMaskReady = 2,  // it is in `grammar`
};

// In a record's status: rank and num_logprobs count. Without it both are 0.
constexpr uint32_t kHasDetails = 128;

struct Record {
  uint64_t head;  // bits 0 to 31 the token, 32 to 39 the status, the rest the number of the step plus one; written last
  uint32_t rank;
  uint32_t num_logprobs;
};
static_assert(sizeof(Record) == 16);

struct Logprob {
  uint32_t token;
  float logprob;
};

// The state of all rows. A row's lists are its stop ids, its biases, its bad words, and their prefixes.
struct Rows {
  Row* rows;            // [max_num_seqs]
  uint32_t* lists;      // [max_num_seqs, list_capacity]
  uint32_t* masks;      // [max_num_seqs, mask_words]: bit id % 32 of word id / 32 is set if allowed
  uint32_t* seen;       // [max_num_seqs, mask_words]: tokens that penalties apply to
  uint32_t* counts;     // [max_num_seqs, vocab_size]: how often a seen token was generated; rubbish for others
  uint32_t* recent;     // [max_num_seqs, list_capacity]: generated token n at n % list_capacity
  uint32_t* last_tokens;  // [max_num_seqs]: the newest token, which the next decode takes in
  uint32_t* grammar;      // [max_num_seqs, mask_words]: the next token's mask of a masked row, as it came
  uint32_t* mask_states;  // [max_num_seqs]: MaskState of masked rows, written before each of their samples
  uint32_t vocab_size;
  uint32_t mask_words;
  uint32_t list_capacity;
  uint32_t reserved;
};
static_assert(sizeof(Rows) == 88);

}  // namespace izar::sampler
