// RowRecords: rows as records of bytes: infos, values and slots, in this order. Records need not be
// aligned.
#pragma once

#include <cstring>
#include <utility>
#include <vector>

#include "table/host/row_store.h"

namespace group_embedding {

struct RecordHead {
  int64_t count, version, clock;  // as of RowInfo
};

// Where things are in the records of a table.
class RecordLayout {
 public:
  static constexpr int64_t kHeadBytes = sizeof(RecordHead);

  explicit RecordLayout(int64_t value_bytes) : value_bytes_(value_bytes) {}

  // Records have one slot more; what a row of it starts as.
  void AddSlot(std::vector<char> start) { slot_starts_.push_back(std::move(start)); }

  int64_t bytes() const {
    int64_t bytes = kHeadBytes + value_bytes_;
    for (const auto& start : slot_starts_) bytes += static_cast<int64_t>(start.size());
    return bytes;
  }
  static RecordHead Head(const char* record) {
    RecordHead head;
    std::memcpy(&head, record, kHeadBytes);
    return head;
  }
  static void SetHead(const RecordHead& head, char* record) {
    std::memcpy(record, &head, kHeadBytes);
  }
  static const char* Values(const char* record) { return record + kHeadBytes; }

  // Writes the record of rows.keys[i]. Slots that are not in `rows` get initial values.
  void Pack(const KeyedRows& rows, size_t i, int64_t clock, char* record) const {
    const RecordHead head = {rows.counts[i], rows.versions[i], clock};
    record = Copy(reinterpret_cast<const char*>(&head), kHeadBytes, record);
    record = Copy(rows.values.data() + i * value_bytes_, value_bytes_, record);
    for (size_t s = 0; s < slot_starts_.size(); ++s) {
      const std::vector<char>& start = slot_starts_[s];
      const bool is_given = s < rows.slots.size() && !rows.slots[s].empty();
      record = Copy(is_given ? rows.slots[s].data() + i * start.size() : start.data(), start.size(),
                    record);
    }
  }

  void Append(const char* record, int64_t key, KeyedRows* rows) const {
    const RecordHead head = Head(record);
    rows->keys.push_back(key);
    rows->counts.push_back(head.count);
    rows->versions.push_back(head.version);
    const char* from = Values(record);
    rows->values.insert(rows->values.end(), from, from + value_bytes_);
    from += value_bytes_;
    rows->slots.resize(slot_starts_.size());
    for (size_t s = 0; s < slot_starts_.size(); ++s) {
      rows->slots[s].insert(rows->slots[s].end(), from, from + slot_starts_[s].size());
      from += slot_starts_[s].size();
    }
  }

 private:
  static char* Copy(const char* from, size_t bytes, char* to) {
    std::memcpy(to, from, bytes);
    return to + bytes;
  }

  int64_t value_bytes_;
  std::vector<std::vector<char>> slot_starts_;
};

// Records of the rows of a RowStore.
inline void PackRow(const RowStore& store, int64_t row, char* record) {
  const RowInfo info = store.infos().Info(row);
  const RecordHead head = {info.count, info.version, info.clock};
  std::memcpy(record, &head, sizeof(head));
  record += sizeof(head);
  std::memcpy(record, store.Row(row), store.row_bytes());
  record += store.row_bytes();
  for (size_t s = 0; s < store.slots().size(); ++s) {
    std::memcpy(record, store.SlotRow(s, row), store.slot_row_bytes(s));
    record += store.slot_row_bytes(s);
  }
}

inline void UnpackRow(RowStore& store, const char* record, int64_t key, int64_t row) {
  const RecordHead head = RecordLayout::Head(record);
  store.StartOfBatch(row, {key, head.count, head.version, head.clock});
  record = RecordLayout::Values(record);
  std::memcpy(store.Row(row), record, store.row_bytes());
  record += store.row_bytes();
  for (size_t s = 0; s < store.slots().size(); ++s) {
    std::memcpy(store.SlotRow(s, row), record, store.slot_row_bytes(s));
    record += store.slot_row_bytes(s);
  }
}

}  // namespace group_embedding
