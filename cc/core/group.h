// The vocabulary of a group: tables, features and one batch of ids. See cc/README.md for each word.
//
// Everything here is a plain view: pointers are borrowed, trivially copyable, and live in host
// memory for the CPU functions and in device memory for the CUDA ones.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

// How the rows of one sample become one vector.
//   kSum                  sum_i w_i row_i
//   kMean, kSignedMean    sum_i w_i row_i / sum_i w_i
//   kSqrtN, kSignedSqrtN  sum_i w_i row_i / sqrt(sum_i w_i^2)
// kMean and kSqrtN leave out the ids whose weight is not positive, as TensorFlow's
// safe_embedding_lookup_sparse does; the signed ones count every id, as embedding_lookup_sparse
// does. A sample without ids, or with nothing to divide by, is a vector of zeros.
enum class Combiner : int32_t {
  kSum = 0,
  kMean = 1,
  kSqrtN = 2,
  kSignedMean = 3,
  kSignedSqrtN = 4
};

// The longest row that ops take: enough for any model, and far from where sizes overflow.
inline constexpr int32_t kMaxDim = 4096;

// The most often that one key may come in one call: the ids of a rank's batch are fewer. Sums of it
// stay far from the end of a counter's 63 bits.
inline constexpr int64_t kMaxTimes = int64_t{1} << 32;

enum class DataType : int32_t { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

inline constexpr int64_t SizeOf(DataType type) { return type == DataType::kFloat32 ? 4 : 2; }

// What an id outside [0, num_rows) means.
struct InvalidIds {
  bool prune_negative = true;  // an id < 0 is left out; otherwise it is as bad as one too large
  bool read_zeros = false;     // a bad id reads a row of zeros; otherwise it is a fault
};

// One table: `rows` is [num_rows, dim], row-major.
struct Table {
  const void* rows;
  int64_t num_rows;
  int32_t dim;
  float max_norm;  // a row whose L2 norm is above it is read scaled down to it; <= 0: never
  // On a GPU: this row and those after it are in host memory, which the device reads over the bus;
  // -1: no row is.
  int64_t first_host_row = -1;
};

// One lookup of one table. Its samples are [first_sample, first_sample + num_samples) of the batch.
struct Feature {
  int64_t first_sample;
  int64_t num_samples;
  void* output;           // forward: written; backward: its gradient, read. Sample s is at
                          // output + s * output_stride, [dim] elements
  int64_t output_stride;  // in elements; dim for a tensor of its own, sum of dims when concatenated
  int32_t table;          // index into the group's tables
  Combiner combiner;
};

// The ids of all features, feature after feature: one ragged tensor of num_samples rows.
struct Batch {
  const int64_t* row_splits;  // [num_samples + 1]; the ids of sample s are row_splits[s] to [s +
                              // 1]; null: every sample s has one id, that at s
  const int64_t* ids;         // [num_ids]
  const float* weights;       // [num_ids], or null: every weight is 1
  int64_t num_samples;
  int64_t num_ids;
  // [num_ids] the rows that a lookup reads where `ids` are the rows that are trained, or null: it
  // reads those. The two differ where a filter has admitted a key: the key is read from the next
  // lookup on. Gradients of clipped rows are those of the rows read.
  const int64_t* reads = nullptr;

  // Where the ids of a sample begin; those before it end there. On the host row splits have been
  // checked (grouping/check_batch.h); on the device, where nobody waits for that, a wrong one is
  // moved into [0, num_ids], so that whatever lies between two of them is in the batch.
  GROUP_EMBEDDING_HOST_DEVICE int64_t Begin(int64_t sample) const {
    if (row_splits == nullptr) return sample;
#ifdef __CUDA_ARCH__
    return Bounded(__ldg(row_splits + sample));
#else
    return row_splits[sample];
#endif
  }
  GROUP_EMBEDDING_HOST_DEVICE int64_t Bounded(int64_t split) const {
    return split < 0 ? 0 : split > num_ids ? num_ids : split;
  }
};

}  // namespace group_embedding
