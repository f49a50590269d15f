// Claimed sequences as the scheduler's block reads them, and their rows of the sampler's state.
//
// Prompts and lists are read from the device's copy of what was submitted, which the claim has validated; generated tokens from
// the ring's output arena. A row is bound by one warp; all of its lanes call.
#pragma once
#include <stdint.h>

#include "../../../ring/include/izar_ring.h"
#include "args.h"
#include "records.h"
#include "row_state.cuh"

namespace izar::resident {

constexpr uint32_t kLanes = 32;

template <class Here>
struct Sequences {
  const IzarResidentArgs& a;

  IZAR_DEVICE const IzarRingRequestRecord& request(uint32_t slot) const {
    return reinterpret_cast<const IzarRingRequestRecord*>(a.submitted + a.requests_offset)[slot];
  }
  template <class T>
  IZAR_DEVICE const T* submitted(const IzarRingSpan& span) const {
    return reinterpret_cast<const T*>(a.submitted + span.offset);
  }
  IZAR_DEVICE uint64_t* ring_word(uint64_t offset, uint64_t index) const {
    return reinterpret_cast<uint64_t*>(a.ring + offset) + index;
  }

  // The sequence's token at a position, prompt and generated ones alike.
  IZAR_DEVICE uint32_t history(uint32_t slot, uint32_t position) const {
    const IzarRingRequestRecord& r = request(slot);
    if (position < r.prompt.len) return submitted<uint32_t>(r.prompt)[position];
    return generated(slot, position - r.prompt.len);
  }

  IZAR_DEVICE uint32_t generated(uint32_t slot, uint32_t index) const {
    const uint64_t at = request(slot).output_offset + uint64_t{index} * IZAR_RING_OUTPUT_BYTES;
    const uint32_t id = static_cast<uint32_t>(Here::load_relaxed_sys(ring_word(at, 0)));
    return id < a.rows.vocab_size ? id : a.rows.vocab_size - 1;
  }

  IZAR_DEVICE void bind(const PlanEntry& e) const {
    const IzarRingRequestRecord& r = request(e.slot);
    const Live& live = a.live[e.slot];
    const uint32_t lane = Here::thread() % kLanes;
    sampler::Row row = row_state(r, live);
    if (r.flags & IZAR_RING_REQUEST_MASKED) {
      row.flags |= sampler::kMasked;
      row.mask_generation = r.generation;
      row.mask_word = reinterpret_cast<uint64_t>(ring_word(a.masks_offset, e.slot));
      row.mask_area = reinterpret_cast<uint64_t>(a.ring + r.masks.offset);
    }
    if (lane == 0) {
      a.rows.rows[e.row] = row;
      const uint32_t len = r.prompt.len + live.num_generated;
      a.rows.last_tokens[e.row] = history(e.slot, len - 1);
    }
    bind_lists(r, live, e.row);
    if (row.flags & sampler::kHasMask) bind_mask(r, e.row);
    const uint32_t num_recent = live.num_generated < live.longest_prefix ? live.num_generated : live.longest_prefix;
    for (uint32_t i = lane; i < num_recent; i += kLanes) {
      const uint32_t index = live.num_generated - num_recent + i;
      a.rows.recent[uint64_t{e.row} * a.rows.list_capacity + index % a.rows.list_capacity] = generated(e.slot, index);
    }
    if (row.flags & (sampler::kCountsPrompt | sampler::kCountsGenerated)) bind_counts(r, live, e, row.flags);
    Here::sync_warp();
  }

  // Stop ids; biases by token, those of one token in the request's order; bad words, then their prefixes.
  IZAR_DEVICE void bind_lists(const IzarRingRequestRecord& r, const Live& live, uint32_t row) const {
    const uint32_t lane = Here::thread() % kLanes;
    uint32_t* lists = a.rows.lists + uint64_t{row} * a.rows.list_capacity;
    for (uint32_t i = lane; i < r.stop_ids.len; i += kLanes) lists[i] = submitted<uint32_t>(r.stop_ids)[i];
    const IzarRingLogitBias* biases = submitted<IzarRingLogitBias>(r.logit_bias);
    uint32_t* sorted = lists + r.stop_ids.len;
    for (uint32_t i = lane; i < r.logit_bias.len; i += kLanes) {
      uint32_t place = 0;
      for (uint32_t j = 0; j < r.logit_bias.len; ++j) {
        place += biases[j].token < biases[i].token || (biases[j].token == biases[i].token && j < i) ? 1 : 0;
      }
      sorted[2 * place] = biases[i].token;
      sorted[2 * place + 1] = __float_as_uint(biases[i].bias);
    }
    if (lane == 0) bind_bad_words(r, live, lists, r.stop_ids.len + 2 * r.logit_bias.len);
  }

  IZAR_DEVICE void bind_bad_words(const IzarRingRequestRecord& r, const Live& live, uint32_t* lists, uint32_t at) const {
    const uint32_t* words = submitted<uint32_t>(r.bad_words);
    uint32_t prefix_at = at + 3 * live.num_bad_words;
    for (uint32_t i = 0, word = 0; word < live.num_bad_words; ++word) {
      const uint32_t prefix_len = words[i] - 1;
      lists[at + 3 * word] = words[i + 1 + prefix_len];
      lists[at + 3 * word + 1] = prefix_at;
      lists[at + 3 * word + 2] = prefix_len;
      for (uint32_t j = 0; j < prefix_len; ++j) lists[prefix_at + j] = words[i + 1 + j];
      prefix_at += prefix_len;
      i += 1 + words[i];
    }
  }

  IZAR_DEVICE void bind_mask(const IzarRingRequestRecord& r, uint32_t row) const {
    const uint32_t lane = Here::thread() % kLanes;
    uint32_t* mask = a.rows.masks + uint64_t{row} * a.rows.mask_words;
    for (uint32_t i = lane; i < a.rows.mask_words; i += kLanes) mask[i] = 0;
    Here::sync_warp();
    const uint32_t* ids = submitted<uint32_t>(r.allowed_ids);
    for (uint32_t i = lane; i < r.allowed_ids.len; i += kLanes) Here::or_global(&mask[ids[i] / 32], 1u << ids[i] % 32);
  }

  // What penalties look at.
  IZAR_DEVICE void bind_counts(const IzarRingRequestRecord& r, const Live& live, const PlanEntry& e, uint32_t flags) const {
    const uint32_t lane = Here::thread() % kLanes;
    uint32_t* seen = a.rows.seen + uint64_t{e.row} * a.rows.mask_words;
    uint32_t* counts = a.rows.counts + uint64_t{e.row} * a.rows.vocab_size;
    for (uint32_t i = lane; i < a.rows.mask_words; i += kLanes) seen[i] = 0;
    Here::sync_warp();
    const uint32_t first = flags & sampler::kCountsPrompt ? 0 : r.prompt.len;
    const uint32_t len = r.prompt.len + live.num_generated;
    for (uint32_t i = first + lane; i < len; i += kLanes) {
      const uint32_t token = history(e.slot, i);
      Here::or_global(&seen[token / 32], 1u << token % 32);
      counts[token] = 0;
    }
    Here::sync_warp();
    for (uint32_t i = lane; i < live.num_generated; i += kLanes) Here::add_global(&counts[generated(e.slot, i)], 1);
  }
};

}  // namespace izar::resident
