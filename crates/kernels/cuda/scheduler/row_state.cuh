// A sampler row from a request: what the host's encoder of bindings (engine, cuda/sampler/encode.rs) writes, bit for bit.
#pragma once
#include <stdint.h>

#include "../../../ring/include/izar_ring.h"
#include "../sampler/elementary.cuh"
#include "../sampler/state.cuh"
#include "records.h"

namespace izar::resident {

constexpr float kGreedyTemperature = 1e-5f;
constexpr float kGreedyTopP = 1e-6f;
constexpr float kSmallestNormal = 1.17549435e-38f;
constexpr float kMostNegative = -3.40282347e+38f;

IZAR_DEVICE inline sampler::Row row_state(const IzarRingRequestRecord& r, const Live& live) {
  sampler::Row row = {};
  const bool counts_prompt = r.repetition_penalty != 1.0f;
  const bool counts_generated = counts_prompt || r.presence_penalty != 0.0f || r.frequency_penalty != 0.0f;
  const bool is_greedy = r.temperature < kGreedyTemperature || r.top_k == 1 || r.top_p < kGreedyTopP;
  row.flags = (is_greedy ? sampler::kGreedy : 0u) | (r.allowed_ids.len > 0 ? sampler::kHasMask : 0u) |
              (counts_prompt ? sampler::kCountsPrompt : 0u) | (counts_generated ? sampler::kCountsGenerated : 0u) |
              (r.flags & IZAR_RING_REQUEST_IGNORE_EOS ? sampler::kIgnoreEos : 0u);
  row.scale = __fdiv_rn(1.0f, r.temperature);
  row.top_p = r.top_p;
  row.top_k = r.top_k;
  // The smallest scaled logit that is kept: above what is masked, or what min-p says.
  const float min_p = r.min_p > kSmallestNormal ? r.min_p : kSmallestNormal;
  row.max_key = __float_as_uint(r.min_p > 0.0f ? sampler::ln_positive(min_p) : kMostNegative) & 0x7FFFFFFFu;
  row.repetition_penalty = r.repetition_penalty;
  row.presence_penalty = r.presence_penalty;
  row.frequency_penalty = r.frequency_penalty;
  row.philox_key[0] = static_cast<uint32_t>(live.seed);
  row.philox_key[1] = static_cast<uint32_t>(live.seed >> 32);
  row.min_tokens = r.min_tokens;
  row.max_tokens = r.max_tokens;
  row.prompt_len = r.prompt.len;
  row.num_top_logprobs = r.num_logprobs;
  row.num_stop_ids = r.stop_ids.len;
  row.num_biases = r.logit_bias.len;
  row.num_bad_words = live.num_bad_words;
  row.num_generated = live.num_generated;
  return row;
}

}  // namespace izar::resident
