// What the scheduler kernel is launched with: addresses and sizes.
#pragma once
#include <stdint.h>

#include "../sampler/state.cuh"
#include "records.h"

// Mirrored by izar_kernels::resident::Args.
struct IzarResidentArgs {
  void* core;
  izar::resident::Control* control;
  izar::resident::Status* status;
  // The ring, and the copy of what was submitted, at the same offsets up to the output arena.
  uint8_t* ring;
  uint8_t* submitted;
  uint64_t leases_offset;
  uint64_t submit_offset;
  uint64_t cancel_offset;
  uint64_t recycle_offset;
  uint64_t progress_offset;
  uint64_t requests_offset;
  uint64_t input_offset;
  uint64_t output_offset;
  uint64_t masks_offset;
  // Of izar_resident.
  izar::resident::Event* events;
  izar::resident::Live* live;
  izar::resident::Sample* samples;
  izar::resident::PlanHeader* plan_header;
  izar::resident::PlanEntry* plan_entries;
  const uint32_t* block_tables;  // [max_num_seqs, table_width]
  uint32_t* candidates;          // [num_slots]
  uint32_t* sample_slots;        // [2, max_num_seqs]
  // Of the steps.
  uint32_t* plans[2];
  const uint64_t* marks[2];
  const void* const* execs;        // [buckets, 2]: handles of step graphs
  const uint16_t* decode_buckets;  // [max_num_seqs]: bucket by tokens - 1
  const uint16_t* mixed_buckets;   // [max_num_batched_tokens]
  const izar::resident::SampleRecord* records;  // [2, max_num_seqs]
  uint32_t* gaps;                  // [num_gaps]: ns from a step's end to the next one's start, by step
  izar::sampler::Rows rows;
  int64_t clock_offset_ns;  // engine's clock - device's clock
  uint32_t num_gaps;
  uint32_t num_slots;
  uint32_t num_leases;
  uint32_t max_num_seqs;
  uint32_t table_width;
  uint32_t logprob_entries;
  uint32_t window;
  uint32_t reserved;
};
