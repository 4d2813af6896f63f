#include "table/file/table_file_header.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "table/file/byte_stream.h"

namespace group_embedding {
namespace {

bool IsDataType(int32_t type) { return type >= 0 && type <= 2; }

bool IsKeyType(int32_t type) { return type >= 0 && type <= static_cast<int32_t>(KeyType::kUint64); }

bool IsGood(const Admission& admission) {
  if (admission.kind != Admission::Kind::kBloom) {
    return admission.kind == Admission::Kind::kAll || admission.kind == Admission::Kind::kCounter;
  }
  const int32_t bytes = admission.counter_bytes;
  return (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8) && admission.num_hashes > 0 &&
         admission.num_counters > 0 && admission.num_counters < int64_t{1} << 56;
}

}  // namespace

TableFileHeader HeaderOf(const EmbeddingTable& table) {
  const TableOptions& options = table.options();
  TableFileHeader header;
  header.table = options.name;
  header.time = table.time();
  header.dim = options.dim;
  header.dtype = options.dtype;
  header.key_type = options.key_type;
  header.initial = options.initial;
  header.no_row_value = options.no_row_value;
  header.admission = options.admission;
  header.slots = table.slots();
  return header;
}

bool HasGoodSlots(const TableFileHeader& header) {
  std::unordered_set<std::string> names;
  for (const SlotOptions& slot : header.slots) {
    if (slot.width != 1 && slot.width != header.dim) return false;
    if (!names.insert(slot.name).second) return false;
  }
  return header.slots.size() <= kMaxSavedSlots && BytesPerRow(header) <= kMaxSavedRowBytes;
}

const char* FindFault(const TableFileHeader& header, int64_t file_bytes) {
  if (header.num_parts < 1 || header.part < 0 || header.part >= header.num_parts) {
    return "a part that there is not";
  }
  if (header.dim < 1 || RowBytes(header) > kMaxSavedRowBytes || !HasGoodSlots(header)) {
    return "rows or slots of a width that no table has";
  }
  const int64_t initial = header.initial.matrix_rows;
  if (initial < 0 || initial > file_bytes / RowBytes(header))
    return "more initial rows than it has";
  const int64_t most_minutes = std::numeric_limits<uint32_t>::max();
  if (header.time.last_step < -1 || header.time.minute < 0 || header.time.minute > most_minutes) {
    return "a time that there is not";
  }
  if (!IsGood(header.admission)) return "a filter that there is not";
  return nullptr;
}

std::string HeaderPayload(const TableFileHeader& header) {
  ByteWriter out;
  out.PutString(header.table);
  out.Put(header.save_id);
  out.Put(header.file_id);
  out.Put(header.part);
  out.Put(header.num_parts);
  out.Put(static_cast<int32_t>(header.changes_only));
  out.Put(header.step);
  out.Put(header.time.last_step);
  out.Put(header.time.minute);
  out.Put(header.dim);
  out.Put(static_cast<int32_t>(header.dtype));
  out.Put(static_cast<int32_t>(header.key_type));
  out.Put(static_cast<int32_t>(header.initial.distribution));
  out.Put(header.initial.a);
  out.Put(header.initial.b);
  out.Put(header.initial.seed);
  out.Put(header.initial.matrix_rows);
  out.Put(header.no_row_value);
  out.Put(static_cast<int32_t>(header.admission.kind));
  out.Put(header.admission.min_count);
  out.Put(header.admission.num_counters);
  out.Put(header.admission.num_hashes);
  out.Put(header.admission.counter_bytes);
  out.Put(static_cast<uint32_t>(header.slots.size()));
  for (const SlotOptions& slot : header.slots) {
    out.PutString(slot.name);
    out.Put(slot.width);
    out.Put(static_cast<int32_t>(slot.dtype));
    out.Put(slot.initial);
  }
  return out.bytes();
}

bool ParseHeader(const std::string& payload, uint32_t version, TableFileHeader* header) {
  ByteReader in(payload);
  header->table = in.GetText();
  header->save_id = in.Get<uint64_t>();
  header->file_id = version == 1 ? 0 : in.Get<uint64_t>();
  header->part = in.Get<int32_t>();
  header->num_parts = in.Get<int32_t>();
  header->changes_only = in.Get<int32_t>() != 0;
  header->step = in.Get<int64_t>();
  header->time = {std::max<int64_t>(header->step, 0) - 1, 0};
  if (version >= 4) {
    header->time.last_step = in.Get<int64_t>();
    header->time.minute = in.Get<int64_t>();
  }
  header->dim = in.Get<int32_t>();
  const int32_t dtype = in.Get<int32_t>();
  header->dtype = static_cast<DataType>(dtype);
  const int32_t key_type = version < 3 ? 0 : in.Get<int32_t>();
  header->key_type = static_cast<KeyType>(key_type);
  header->initial.distribution = static_cast<Distribution>(in.Get<int32_t>());
  header->initial.a = in.Get<float>();
  header->initial.b = in.Get<float>();
  header->initial.seed = in.Get<uint64_t>();
  header->initial.matrix_rows = in.Get<int64_t>();
  header->no_row_value = in.Get<float>();
  header->admission.kind = static_cast<Admission::Kind>(in.Get<int32_t>());
  header->admission.min_count = in.Get<int64_t>();
  header->admission.num_counters = in.Get<int64_t>();
  header->admission.num_hashes = in.Get<int32_t>();
  header->admission.counter_bytes = in.Get<int32_t>();
  header->slots.clear();
  bool good = IsDataType(dtype) && IsKeyType(key_type);
  for (uint32_t left = in.Get<uint32_t>(); left > 0 && in.ok(); --left) {
    SlotOptions slot;
    slot.name = in.GetText();
    slot.width = in.Get<int32_t>();
    const int32_t type = in.Get<int32_t>();
    slot.dtype = static_cast<DataType>(type);
    slot.initial = in.Get<float>();
    good = good && IsDataType(type);
    header->slots.push_back(slot);
  }
  return good && in.Ended();
}

int64_t BytesPerRow(const TableFileHeader& header) {
  int64_t bytes = 3 * sizeof(int64_t) + RowBytes(header);
  for (const SlotOptions& slot : header.slots) bytes += SlotBytes(slot);
  return bytes;
}

int64_t MaxCounterBytes(const Admission& admission) {
  if (admission.kind != Admission::Kind::kBloom) return 0;
  const int64_t per_word = 8 / admission.counter_bytes;
  return (admission.num_counters / per_word + (admission.num_counters % per_word != 0)) * 8;
}

}  // namespace group_embedding
