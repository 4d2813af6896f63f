// Snapshot: the content of a keyed table at one instant.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "table/change_log.h"
#include "table/keyed_rows.h"

namespace group_embedding {

class EmbeddingTable;

// The content of a table at one instant, which can be read while training goes on: before a row
// that has not been read changes, its content is copied.
class Snapshot {
 public:
  virtual ~Snapshot() = default;
  virtual const EmbeddingTable& table() const = 0;
  // The number of rows to read.
  virtual int64_t num_rows() const = 0;
  // Appends the rows of [begin, end) that belonged to a key at that instant. Each row is read once.
  virtual void Read(int64_t begin, int64_t end, KeyedRows* rows) = 0;
  // The error of a Read, after which its rows are incomplete.
  virtual Status status() const { return {}; }
  // Reads the counts on the first call. An early call leaves fewer counts to copy.
  virtual const AdmissionState& admission() = 0;
  // Keys erased since the mark that the changes are counted from; empty for a full snapshot.
  virtual const std::vector<int64_t>& erased() const = 0;
  // After all rows were read: the keys evicted with the snapshot that are not in erased().
  virtual std::vector<int64_t> evicted() const = 0;
  // Called once the snapshot is saved, if saves asked for it. After a full snapshot, their
  // snapshots of changes start from it.
  virtual void Keep() = 0;
  // The instant of the snapshot: what changes later are changes since this mark.
  virtual const ChangeMark& mark() const = 0;
};

}  // namespace group_embedding
