// Fault: the first error in a batch's input and its position, found by a CPU thread or a CUDA
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace group_embedding {

enum class FaultKind : int32_t {
  kNone = 0,
  kIdOutOfRange,      // value: the id
  kRowsUnsorted,      // value: the row, smaller than the one before it
  kRowOutOfBatch,     // value: the row, not in [0, num_samples)
  kRowSplitsInvalid,  // value: the split; splits must start at 0, never fall, end at num_ids
  kWeightRowsDiffer,  // value: the position whose row differs between ids and weights
};

// Whether a number that came from elsewhere is a kind of fault, or none.
inline bool IsFaultKind(int64_t kind) {
  return kind >= 0 && kind <= static_cast<int64_t>(FaultKind::kWeightRowsDiffer);
}

// Trivially copyable, so that a CUDA thread can fill one; the first to come wins.
struct Fault {
  FaultKind kind = FaultKind::kNone;
  int32_t feature = -1;
  int64_t sample = -1;  // within its feature, or the position of the row or split
  int64_t value = 0;
};

// One sentence for people, such as
//   table 'user', feature 'clicks': id 7 of sample 2 is outside the table; expected 0 <= id < 5
// `limit` is what the value was held against: rows of the table, samples or ids of the feature; -1:
// that is not known here.
std::string Describe(const Fault& fault, const std::string& feature, const std::string& table,
                     int64_t limit);

}  // namespace group_embedding
