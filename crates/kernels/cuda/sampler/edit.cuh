// What changes single logits before the temperature: biases, stop tokens before `min_tokens`, bad words, penalties.
// The row's mask was applied when the slice was loaded, which is the same: what is -inf stays so.
#pragma once
#include "../ptx/memory.cuh"
#include "block.cuh"

namespace izar::sampler {

struct Lists {
  const uint32_t* stop_ids;
  const Bias* biases;
  const BadWord* bad_words;
  const uint32_t* words;   // the whole list, which prefixes are places in
  const uint32_t* recent;  // the row's
  uint32_t list_capacity;
  const uint32_t* eos_ids;
  uint32_t num_eos_ids;
  const uint32_t* seen;  // the row's
  const uint32_t* counts;
};

__device__ __forceinline__ bool masks_stop_ids(const Row& row, const Lists& lists) {
  const bool has_eos = lists.num_eos_ids > 0 && !(row.flags & kIgnoreEos);
  return row.num_generated < row.min_tokens && (row.num_stop_ids > 0 || has_eos);
}

// Whether anything but the mask changes a logit.
__device__ __forceinline__ bool has_sparse_edits(const Row& row, const Lists& lists) {
  return row.num_biases > 0 || row.num_bad_words > 0 || (row.flags & (kCountsPrompt | kCountsGenerated)) ||
         masks_stop_ids(row, lists);
}

__device__ inline void add_biases(Block& block, const Row& row, const Lists& lists) {
  for (uint32_t i = threadIdx.x; i < row.num_biases; i += kThreads) {
    const uint32_t token = lists.biases[i].token;
    const uint32_t at = token - block.begin;
    if (at >= block.num_tokens || (i > 0 && lists.biases[i - 1].token == token)) continue;
    float x = block.slice[at];
    for (uint32_t j = i; j < row.num_biases && lists.biases[j].token == token; ++j) {
      x = __fadd_rn(x, lists.biases[j].bias);
    }
    block.slice[at] = x;
  }
}

__device__ __forceinline__ void forbid(Block& block, uint32_t token) {
  const uint32_t at = token - block.begin;
  if (at < block.num_tokens) block.slice[at] = -INFINITY;
}

__device__ inline void forbid_stop_ids(Block& block, const Row& row, const Lists& lists) {
  if (!masks_stop_ids(row, lists)) return;
  for (uint32_t i = threadIdx.x; i < row.num_stop_ids; i += kThreads) forbid(block, lists.stop_ids[i]);
  if (row.flags & kIgnoreEos) return;
  for (uint32_t i = threadIdx.x; i < lists.num_eos_ids; i += kThreads) forbid(block, lists.eos_ids[i]);
}

__device__ inline void forbid_bad_words(Block& block, const Row& row, const Lists& lists) {
  for (uint32_t i = threadIdx.x; i < row.num_bad_words; i += kThreads) {
    const BadWord word = lists.bad_words[i];
    if (word.prefix_len > row.num_generated) continue;
    const uint32_t first = row.num_generated - word.prefix_len;
    bool matches = true;
    for (uint32_t j = 0; j < word.prefix_len && matches; ++j) {
      matches = lists.recent[(first + j) % lists.list_capacity] == lists.words[word.prefix_at + j];
    }
    if (matches) forbid(block, word.last);
  }
}

__device__ __forceinline__ float penalised(float x, const Row& row, uint32_t count) {
  if (row.repetition_penalty != 1.0f) {
    x = x > 0.0f ? __fdiv_rn(x, row.repetition_penalty) : __fmul_rn(x, row.repetition_penalty);
  }
  if (count > 0) {
    x = __fsub_rn(x, __fmul_rn(row.frequency_penalty, __uint2float_rn(count)));
    x = __fsub_rn(x, row.presence_penalty);
  }
  return x;
}

// Asks for what `penalise` will read, while the slice is under way.
__device__ inline void prefetch_history(const Block& block, const Row& row, const Lists& lists) {
  if (!(row.flags & (kCountsPrompt | kCountsGenerated))) return;
  const uint32_t num_words = (block.num_tokens + 31) / 32;
  for (uint32_t word = threadIdx.x; word < num_words; word += kThreads) {
    for (uint32_t bits = lists.seen[block.begin / 32 + word]; bits != 0; bits &= bits - 1) {
      ptx::prefetch_l2(&lists.counts[block.begin + 32 * word + __ffs(bits) - 1]);
    }
  }
}

__device__ inline void penalise(Block& block, const Row& row, const Lists& lists) {
  if (!(row.flags & (kCountsPrompt | kCountsGenerated))) return;
  // A slice starts at a multiple of 128 tokens. No token beyond the vocabulary is ever seen.
  const uint32_t num_words = (block.num_tokens + 31) / 32;
  for (uint32_t word = threadIdx.x; word < num_words; word += kThreads) {
    for (uint32_t bits = lists.seen[block.begin / 32 + word]; bits != 0; bits &= bits - 1) {
      const uint32_t at = 32 * word + __ffs(bits) - 1;
      block.slice[at] = penalised(block.slice[at], row, lists.counts[block.begin + at]);
    }
  }
}

__device__ inline void apply_sparse_edits(Block& block, const Row& row, const Lists& lists) {
  block.is_raw = false;
  __syncthreads();
  add_biases(block, row, lists);
  __syncthreads();
  forbid_stop_ids(block, row, lists);
  forbid_bad_words(block, row, lists);
  __syncthreads();
  penalise(block, row, lists);
  __syncthreads();
}

// Gives +inf its meaning, a token that is certain: infinite logits become 0 and all others -inf.
__device__ inline void level_infinite(Block& block) {
  block.is_raw = false;
  for (uint32_t vector = threadIdx.x; vector < block.num_vectors; vector += kThreads) {
    const float4 x = block.vectors()[vector];
    const auto level = [](float y) { return y == INFINITY ? 0.0f : -INFINITY; };
    block.vectors()[vector] = {level(x.x), level(x.y), level(x.z), level(x.w)};
  }
}

}  // namespace izar::sampler
