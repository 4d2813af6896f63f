// A row of a RowStore as one piece of bytes: what is kept of it, values, slots in their order.
#pragma once

#include <cstring>
#include <vector>

#include "table/row_store.h"

namespace group_embedding {

struct RecordHead {
  int64_t count, version, clock;  // as of RowInfo
};

// Of the slots that the store has when it is made. Records need not be aligned.
class RowRecords {
 public:
  explicit RowRecords(const RowStore& store) : store_(store), num_slots_(store.slots().size()) {
    bytes_ = kHeadBytes + store.row_bytes();
    for (size_t s = 0; s < num_slots_; ++s) bytes_ += store.slot_row_bytes(s);
  }

  int64_t bytes() const { return bytes_; }

  static RecordHead Head(const char* record) {
    RecordHead head;
    std::memcpy(&head, record, kHeadBytes);
    return head;
  }
  static const char* Values(const char* record) { return record + kHeadBytes; }

  void Pack(int64_t row, char* record) const {
    const RowInfo& info = store_.Info(row);
    record = PackHead({info.count, info.version, info.clock}, record);
    record = Copy(store_.Row(row), store_.row_bytes(), record);
    for (size_t s = 0; s < num_slots_; ++s) {
      record = Copy(store_.SlotRow(s, row), store_.slot_row_bytes(s), record);
    }
  }

  // Of rows.keys[i]; slots that are not in `rows` start anew.
  void Pack(const KeyedRows& rows, size_t i, int64_t clock, char* record) const {
    const int64_t bytes = store_.row_bytes();
    record = PackHead({rows.counts[i], rows.versions[i], clock}, record);
    record = Copy(rows.values.data() + i * bytes, bytes, record);
    for (size_t s = 0; s < num_slots_; ++s) {
      const int64_t slot_bytes = store_.slot_row_bytes(s);
      const bool is_given = s < rows.slots.size() && !rows.slots[s].empty();
      record = Copy(is_given ? rows.slots[s].data() + i * slot_bytes : SlotStart(store_, s),
                    slot_bytes, record);
    }
  }

  void Unpack(const char* record, int64_t key, int64_t row) const {
    const RecordHead head = Head(record);
    store_.Info(row) = {key, head.count, head.version, head.clock};
    std::memcpy(store_.Row(row), Values(record), store_.row_bytes());
    record = Values(record) + store_.row_bytes();
    for (size_t s = 0; s < num_slots_; ++s) {
      std::memcpy(store_.SlotRow(s, row), record, store_.slot_row_bytes(s));
      record += store_.slot_row_bytes(s);
    }
  }

  void Append(const char* record, int64_t key, KeyedRows* rows) const {
    const RecordHead head = Head(record);
    rows->keys.push_back(key);
    rows->counts.push_back(head.count);
    rows->versions.push_back(head.version);
    const char* from = Values(record);
    rows->values.insert(rows->values.end(), from, from + store_.row_bytes());
    from += store_.row_bytes();
    rows->slots.resize(num_slots_);
    for (size_t s = 0; s < num_slots_; ++s) {
      rows->slots[s].insert(rows->slots[s].end(), from, from + store_.slot_row_bytes(s));
      from += store_.slot_row_bytes(s);
    }
  }

  // What a slot of a key starts as: that of the first row, which no key has.
  static const char* SlotStart(const RowStore& store, size_t s) { return store.SlotRow(s, 0); }

 private:
  static constexpr int64_t kHeadBytes = sizeof(RecordHead);

  static char* Copy(const char* from, int64_t bytes, char* to) {
    std::memcpy(to, from, bytes);
    return to + bytes;
  }
  static char* PackHead(const RecordHead& head, char* record) {
    return Copy(reinterpret_cast<const char*>(&head), kHeadBytes, record);
  }

  const RowStore& store_;
  const size_t num_slots_;
  int64_t bytes_;
};

}  // namespace group_embedding
