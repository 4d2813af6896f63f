#include "core/fault.h"

#include <limits>

namespace group_embedding {
namespace {

std::string Range(int64_t limit) {
  return " outside the range; expected 0 <= value < " + std::to_string(limit);
}

// An id as the user gave it, but for those of uint64 above 2^63 - 1: grouping makes them that
// number.
std::string Id(int64_t value) {
  const bool is_greatest = value == std::numeric_limits<int64_t>::max();
  return std::to_string(value) + (is_greatest ? " or above" : "");
}

}  // namespace

std::string Describe(const Fault& fault, const std::string& feature, const std::string& table,
                     int64_t limit) {
  const std::string where = "feature '" + feature + "': ";
  const std::string value = std::to_string(fault.value), at = std::to_string(fault.sample);
  switch (fault.kind) {
    case FaultKind::kNone:
      return "";
    case FaultKind::kIdOutOfRange:
      return "table '" + table + "', " + where + "id " + Id(fault.value) + " of sample " + at +
             " is outside the table; expected 0 <= id < " + std::to_string(limit);
    case FaultKind::kRowsUnsorted:
      return where + "row " + value + " at position " + at +
             " is smaller than the row before it; expected the indices of a SparseTensor in row "
             "order, use tf.sparse.reorder";
    case FaultKind::kRowOutOfBatch:
      return where + "row " + value + " at position " + at + " is" + Range(limit) +
             ", the rows of its dense_shape";
    case FaultKind::kRowSplitsInvalid:
      return where + "row_splits has " + value + " at position " + at +
             "; expected splits that start at 0, never fall and end at " +
             (limit < 0 ? "" : std::to_string(limit) + ", ") + "the number of ids";
    case FaultKind::kWeightRowsDiffer:
      return where + "the indices of sp_weights differ from those of sp_ids at position " + at +
             "; expected one weight per id, in the same place";
  }
  return "";
}

}  // namespace group_embedding
