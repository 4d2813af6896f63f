#include "table/file/restore_table.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "core/rows.h"
#include "table/complete_rows.h"
#include "table/file/places_of_saved.h"

namespace group_embedding {
namespace {

// Counters of several parts, the largest of each. One part counted all of a key, so these are not
// less than the key's count; and copies of the same counters stay as they are.
void MergeCounters(const std::vector<char>& more, int64_t first_byte, int32_t counter_bytes,
                   std::vector<char>* counters) {
  if (counters->size() < first_byte + more.size()) counters->resize(first_byte + more.size());
  for (size_t at = 0; at + counter_bytes <= more.size(); at += counter_bytes) {
    uint64_t a = 0, b = 0;
    std::memcpy(&a, counters->data() + first_byte + at, counter_bytes);
    std::memcpy(&b, more.data() + at, counter_bytes);
    const uint64_t largest = std::max(a, b);
    std::memcpy(counters->data() + first_byte + at, &largest, counter_bytes);
  }
}

// Makes values of one type those of another, rounded to nearest.
void Convert(DataType from, DataType to, std::vector<char>* values) {
  if (from == to) return;
  const int64_t count = static_cast<int64_t>(values->size()) / SizeOf(from);
  std::vector<char> converted(count * SizeOf(to));
  ForDataType(from, [&](auto* from_type) {
    ForDataType(to, [&](auto* to_type) {
      using To = std::remove_pointer_t<decltype(to_type)>;
      const auto* given = reinterpret_cast<decltype(from_type)>(values->data());
      To* made = reinterpret_cast<To*>(converted.data());
      for (int64_t i = 0; i < count; ++i) made[i] = FromFloat<To>(ToFloat(given[i]));
    });
  });
  *values = std::move(converted);
}

// Brings the content of files into a table, one file after the other.
class Restorer {
 public:
  Restorer(const RestoreOptions& how, const FileSource& files, EmbeddingTable* table,
           const ParallelFor& parallel_for)
      : subset_(how.subset),
        as_start_(how.as_start),
        files_(files),
        table_(table),
        parallel_for_(parallel_for) {}

  // Finds the keys that the table's budget has no place for, of all files.
  Status FindWithoutPlace(const SavedTable& saved, const std::vector<TableFileSummary>& files) {
    if (!table_->options().budget.is_given()) return {};
    PlacesOfSaved places(table_);
    Status status;
    for (const TableFileSummary& file : files) {
      if (status.ok() && !as_start_) status = MakeSlots(file.header);
    }
    while (status.ok() && places.NextPass()) {
      for (const bool changes_only : {true, false}) {
        for (size_t f = 0; f < files.size() && status.ok(); ++f) {
          if (files[f].header.changes_only != changes_only) continue;
          status = AddTo(saved.paths[f], &places);
        }
      }
    }
    without_place_ = places.TakeWithoutPlace();
    table_->CountWithoutPlace(static_cast<int64_t>(without_place_.size()));
    return status;
  }

  // The admission state of the last save counts: that of the changes, if there is one.
  Status Restore(const std::string& path, bool with_admission) {
    TableFileReader file(path, files_);
    Status status = file.Open();
    if (status.ok() && !as_start_) status = MakeSlots(file.header());
    const bool is_full = !file.header().changes_only;
    bool is_last = false;
    while (status.ok() && !is_last) {
      TableFileBlock block;
      status = file.Next(&block);
      if (status.ok() && file.has_encoded()) {
        status = "file '" + path + "': expected rows as trained, got rows quantised for serving";
      }
      if (!status.ok()) break;
      RestoreInitialRows(file.header(), block.initial_rows);
      Keep(&block.erased);
      table_->Erase(block.erased.data(), static_cast<int64_t>(block.erased.size()));
      if (with_admission) AddAdmission(file.header(), &block);
      if (!block.rows.keys.empty()) {
        KeyedRows rows = ForTable(block.rows);
        if (is_full && !changed_.empty()) DropRows(changed_, &rows);
        if (!without_place_.empty()) DropRows(without_place_, &rows);
        KeyedRowsView view = rows;
        view.has_places = table_->options().budget.is_given();  // without_place_ has the others
        status = table_->Insert(view, parallel_for_);
      }
      is_last = block.is_last;
    }
    return status;
  }

  void Finish() {
    const Admission& admission = table_->options().admission;
    if (admission.kind != Admission::Kind::kCounter) admission_.keys = admission_.counts = {};
    if (admission.kind != Admission::Kind::kBloom) admission_.counters = {};
    table_->SetAdmissionState(admission_);
  }

 private:
  // The rows that a file leaves the table with: those of a full save that no changes name.
  Status AddTo(const std::string& path, PlacesOfSaved* places) {
    TableFileReader file(path, files_);
    Status status = file.Open();
    if (status.ok() && !as_start_) status = MakeSlots(file.header());
    for (TableFileBlock block; status.ok() && !block.is_last;) {
      status = file.Next(&block);
      if (!status.ok() || file.has_encoded()) break;  // the restore says so
      KeyedRows rows = ForTable(block.rows);
      if (file.header().changes_only) {
        changed_.insert(rows.keys.begin(), rows.keys.end());
        changed_.insert(block.erased.begin(), block.erased.end());
      } else {
        DropRows(changed_, &rows);
      }
      places->Add(rows);
    }
    return status;
  }

  Status MakeSlots(const TableFileHeader& header) {
    slot_of_.clear();
    saved_types_.clear();
    for (const SlotOptions& saved : header.slots) {
      const SlotOptions slot = SlotInTable(saved, table_->options());
      void* array;
      Status status = table_->Slot(slot, &array);
      if (!status.ok()) return status;
      const auto& slots = table_->slots();
      const auto at = std::find_if(slots.begin(), slots.end(),
                                   [&](const SlotOptions& s) { return s.name == slot.name; });
      slot_of_.push_back(at - slots.begin());
      saved_types_.push_back(saved.dtype);
    }
    return {};
  }

  // A table that starts its keys otherwise keeps what it has: rows of keys do not depend on it.
  void RestoreInitialRows(const TableFileHeader& header, const std::vector<char>& rows) {
    if (as_start_ || header.initial.matrix_rows != table_->options().initial.matrix_rows) return;
    const size_t all = header.initial.matrix_rows * header.dim * SizeOf(header.dtype);
    initial_rows_.insert(initial_rows_.end(), rows.begin(), rows.end());
    if (initial_rows_.size() < all) return;
    table_->WriteInitialRows(initial_rows_.data());
    initial_rows_.clear();
  }

  void Keep(std::vector<int64_t>* keys) const {
    keys->erase(std::remove_if(keys->begin(), keys->end(),
                               [this](int64_t key) { return !subset_.Has(key); }),
                keys->end());
  }

  void AddAdmission(const TableFileHeader& header, TableFileBlock* block) {
    for (size_t i = 0; i < block->admission.keys.size(); ++i) {
      if (!subset_.Has(block->admission.keys[i])) continue;
      admission_.keys.push_back(block->admission.keys[i]);
      admission_.counts.push_back(block->admission.counts[i]);
    }
    const Admission& ours = table_->options().admission;
    if (!MayShareKeys(header.part, header.num_parts, subset_.index, subset_.count) ||
        ours.kind != header.admission.kind || ours.num_counters != header.admission.num_counters ||
        ours.num_hashes != header.admission.num_hashes ||
        ours.counter_bytes != header.admission.counter_bytes) {
      return;
    }
    MergeCounters(block->admission.counters, block->first_counter_byte, ours.counter_bytes,
                  &admission_.counters);
  }

  // The rows of our keys, with slots in the table's order; a slot that is not restored is empty.
  KeyedRows ForTable(const KeyedRows& rows) const {
    KeyedRows kept;
    const std::vector<SlotOptions>& slots = table_->slots();
    kept.slots.resize(slots.size());
    const size_t num_rows = rows.keys.size();
    auto append = [](const std::vector<char>& from, size_t item, size_t bytes,
                     std::vector<char>* to) {
      to->insert(to->end(), from.begin() + item * bytes, from.begin() + (item + 1) * bytes);
    };
    for (size_t i = 0; i < num_rows; ++i) {
      if (!subset_.Has(rows.keys[i])) continue;
      kept.keys.push_back(rows.keys[i]);
      kept.counts.push_back(rows.counts[i]);
      kept.versions.push_back(rows.versions[i]);
      append(rows.values, i, rows.values.size() / num_rows, &kept.values);
      for (size_t s = 0; s < slot_of_.size(); ++s) {
        append(rows.slots[s], i, rows.slots[s].size() / num_rows, &kept.slots[slot_of_[s]]);
      }
    }
    for (size_t s = 0; s < slot_of_.size(); ++s) {
      Convert(saved_types_[s], slots[slot_of_[s]].dtype, &kept.slots[slot_of_[s]]);
    }
    return kept;
  }

  const KeySubset subset_;
  const bool as_start_;
  const FileSource& files_;
  EmbeddingTable* const table_;
  std::vector<size_t> slot_of_;        // the table's slot of each of the file's that is restored
  std::vector<DataType> saved_types_;  // of each of the file's
  const ParallelFor& parallel_for_;
  std::vector<char> initial_rows_;  // those read so far; a file may have them in several blocks
  AdmissionState admission_;
  // For a table with a budget: keys that changes name, and those that have no place.
  std::unordered_set<int64_t> changed_, without_place_;
};

// The newest time of the parts of the last save.
TableTime TimeOf(const std::vector<TableFileSummary>& files, bool has_changes) {
  TableTime time;
  for (const TableFileSummary& file : files) {
    if (file.header.changes_only != has_changes) continue;
    time.last_step = std::max(time.last_step, file.header.time.last_step);
    time.minute = std::max(time.minute, file.header.time.minute);
  }
  return time;
}

}  // namespace

Status RestoreVerified(const SavedTable& saved, const std::vector<TableFileSummary>& files,
                       const RestoreOptions& how, EmbeddingTable* table,
                       const ParallelFor& parallel_for) {
  const bool has_changes =
      std::any_of(files.begin(), files.end(), [](auto& file) { return file.header.changes_only; });
  table->DropEvicted();  // keys of what was, which a restored table is not
  table->Clear();
  table->GoOnAt(TimeOf(files, has_changes));
  Restorer restorer(how, *saved.source, table, parallel_for);
  Status status = restorer.FindWithoutPlace(saved, files);
  for (const bool changes_only : {false, true}) {
    for (size_t f = 0; f < files.size() && status.ok(); ++f) {
      if (files[f].header.changes_only != changes_only) continue;
      status = restorer.Restore(saved.paths[f], /*with_admission=*/changes_only == has_changes);
    }
  }
  if (status.ok()) restorer.Finish();
  return status.In("table '" + table->options().name + "': ");
}

Status RestoreTable(const SavedTable& saved, const RestoreOptions& how, EmbeddingTable* table) {
  std::vector<TableFileSummary> files;
  Status status = VerifySavedTable(saved, table->options().name, &files);
  if (status.ok()) status = CheckFits(saved, files, *table);
  if (status.ok()) status = CheckSpace(saved, files, *table, how);
  return status.ok() ? RestoreVerified(saved, files, how, table) : status;
}

}  // namespace group_embedding
