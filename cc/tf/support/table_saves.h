// TableSaves: the state of a keyed table's saves: the snapshot that waits to be written, and the
// full save to which the next changes will be added. A table has one snapshot at a time: a
// publisher has to come again while a save runs, and a save waits while a publisher reads
// changes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "table/embedding_table.h"
#include "table/file/manifest.h"
#include "tensorflow/core/platform/mutex.h"
#include "tf/support/table_changes.h"

namespace group_embedding {

using SaveClock = std::chrono::steady_clock;

// The saves of this process that write tables. Snapshots of one save wait for each other's writing.
struct WritingSaves {
  std::atomic<int64_t> num_tables{0};
  std::atomic<SaveClock::duration::rep> last_end{0};

  void Begin() { ++num_tables; }
  void End() {
    last_end = SaveClock::now().time_since_epoch().count();
    --num_tables;
  }
  bool HaveWrittenSince(SaveClock::time_point then) const {
    return num_tables > 0 || last_end > then.time_since_epoch().count();
  }
};

inline WritingSaves writing_saves;

// A snapshot. It is read once.
struct TableSave {
  SaveClock::time_point taken = SaveClock::now();
  int64_t id = 0;
  std::shared_ptr<EmbeddingTable> table;  // outlives the snapshot
  std::unique_ptr<Snapshot> snapshot;
  TableFileHeader header;
};

// Where a full save lies. It is of no use for another table than that it was taken of.
struct FullSave {
  std::weak_ptr<EmbeddingTable> table;
  uint64_t id = 0;  // the same in all parts
  std::vector<SavedFile> files;
  std::string prefix;
  std::shared_ptr<const void> hold;  // of the prefix: see table/file/unfinished_saves.h
};

// Needs the resource's lock.
struct TableSaves {
  std::unique_ptr<TableSave> waiting;
  bool is_writing = false;
  FullSave full;
  std::shared_ptr<const void> hold;  // of the last save, whose index may not be written yet

  // Whether the save that took a snapshot failed before it wrote anything: for so long neither it
  // nor another save has written a table.
  bool IsAbandoned(double seconds) const {
    if (waiting == nullptr) return false;
    const auto begin = SaveClock::now() - std::chrono::duration_cast<SaveClock::duration>(
                                              std::chrono::duration<double>(seconds));
    return waiting->taken < begin && !writing_saves.HaveWrittenSince(begin);
  }

  // The table has other content now: the next save is a full one. Changes that a publisher reads
  // are of a snapshot before.
  void Forget() {
    waiting.reset();
    full = FullSave();
    hold.reset();
  }

  bool is_reading_changes = false;  // for a publisher
  tensorflow::condition_variable changes_were_read;
  std::unordered_map<int64_t, std::shared_ptr<TableChanges>> changes;  // by publisher
};

}  // namespace group_embedding
