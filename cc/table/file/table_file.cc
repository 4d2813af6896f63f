#include "table/file/table_file.h"

#include <algorithm>

#include "table/file/byte_stream.h"
#include "table/random_bits.h"

namespace group_embedding {
namespace {

// Kinds of sections. Numbers stay as they are: files have them.
enum Kind : uint32_t {
  kHeader = 1,
  kInitialRows = 2,
  kRows = 3,
  kErased = 4,
  kCounted = 5,
  kCounters = 6,
  kTotals = 7,
  kEncodedRows = 8,
};

constexpr int64_t kBlockBytes = 1 << 20;

// write(begin, end) for blocks of [0, count), of items of `item_bytes`.
template <typename Write>
Status InBlocks(int64_t count, int64_t item_bytes, const Write& write) {
  const int64_t items = std::max<int64_t>(kBlockBytes / std::max<int64_t>(item_bytes, 1), 1);
  Status status;
  for (int64_t begin = 0; begin < count && status.ok(); begin += items) {
    status = write(begin, std::min(begin + items, count));
  }
  return status;
}

}  // namespace

Status TableFileWriter::Open(const TableFileHeader& header) {
  header_ = header;
  header_.file_id = RandomBits() | 1;  // 0 says that it is not known
  if (!HasGoodSlots(header_)) {
    return "expected at most " + std::to_string(kMaxSavedSlots) +
           " slots, of 1 column or of dim, and " + std::to_string(kMaxSavedRowBytes) +
           " bytes of a row with them, to be saved";
  }
  Status status = file_.Open();
  return status.ok() ? file_.Write(kHeader, HeaderPayload(header_)) : status;
}

Status TableFileWriter::AddInitialRows(const void* rows) {
  const int64_t row_bytes = RowBytes(header_);
  return InBlocks(header_.initial.matrix_rows, row_bytes, [&](int64_t begin, int64_t end) {
    ByteWriter out;
    out.PutArray(static_cast<const char*>(rows) + begin * row_bytes, (end - begin) * row_bytes);
    return file_.Write(kInitialRows, out.bytes());
  });
}

Status TableFileWriter::AddRows(const KeyedRows& rows) {
  const int64_t num_rows = static_cast<int64_t>(rows.keys.size());
  totals_.num_rows += num_rows;
  return InBlocks(num_rows, BytesPerRow(header_), [&](int64_t begin, int64_t end) {
    const int64_t count = end - begin;
    auto put = [&](ByteWriter* out, const char* array, int64_t item_bytes) {
      out->PutArray(array + begin * item_bytes, count * item_bytes);
    };
    ByteWriter out;
    out.Put(static_cast<uint64_t>(count));
    for (const auto* numbers : {&rows.keys, &rows.counts, &rows.versions}) {
      put(&out, reinterpret_cast<const char*>(numbers->data()), sizeof(int64_t));
    }
    put(&out, rows.values.data(), RowBytes(header_));
    for (size_t s = 0; s < header_.slots.size(); ++s) {
      put(&out, rows.slots[s].data(), SlotBytes(header_.slots[s]));
    }
    return file_.Write(kRows, out.bytes());
  });
}

Status TableFileWriter::AddEncoded(const EncodedRows& rows) {
  const int64_t num_rows = static_cast<int64_t>(rows.keys.size());
  totals_.num_rows += num_rows;
  const int64_t row_bytes = group_embedding::RowBytes(rows.format, header_.dim);
  return InBlocks(num_rows, row_bytes + sizeof(int64_t), [&](int64_t begin, int64_t end) {
    ByteWriter out;
    out.Put(static_cast<uint32_t>(rows.format));
    out.Put(static_cast<uint64_t>(end - begin));
    out.PutArray(rows.keys.data() + begin, (end - begin) * sizeof(int64_t));
    out.PutArray(rows.rows.data() + begin * row_bytes, (end - begin) * row_bytes);
    return file_.Write(kEncodedRows, out.bytes());
  });
}

Status TableFileWriter::AddErased(const std::vector<int64_t>& keys) {
  totals_.num_erased += static_cast<int64_t>(keys.size());
  return InBlocks(static_cast<int64_t>(keys.size()), sizeof(int64_t),
                  [&](int64_t begin, int64_t end) {
                    ByteWriter out;
                    out.PutArray(keys.data() + begin, (end - begin) * sizeof(int64_t));
                    return file_.Write(kErased, out.bytes());
                  });
}

Status TableFileWriter::AddAdmission(const AdmissionState& state) {
  totals_.num_counted += static_cast<int64_t>(state.keys.size());
  totals_.counter_bytes += static_cast<int64_t>(state.counters.size());
  const Status status =
      InBlocks(static_cast<int64_t>(state.keys.size()), 2 * sizeof(int64_t),
               [&](int64_t begin, int64_t end) {
                 ByteWriter out;
                 out.PutArray(state.keys.data() + begin, (end - begin) * sizeof(int64_t));
                 out.PutArray(state.counts.data() + begin, (end - begin) * sizeof(int64_t));
                 return file_.Write(kCounted, out.bytes());
               });
  if (!status.ok()) return status;
  return InBlocks(static_cast<int64_t>(state.counters.size()), 1, [&](int64_t begin, int64_t end) {
    ByteWriter out;
    out.Put(begin);
    out.PutArray(state.counters.data() + begin, end - begin);
    return file_.Write(kCounters, out.bytes());
  });
}

Status TableFileWriter::Finish(FileSum* sum) {
  ByteWriter out;
  for (const int64_t total :
       {totals_.num_rows, totals_.num_erased, totals_.num_counted, totals_.counter_bytes}) {
    out.Put(total);
  }
  Status status = file_.Write(kTotals, out.bytes());
  if (status.ok()) status = file_.Finish(sum);
  sum->id = header_.file_id;
  return status;
}

Status TableFileReader::Open() {
  uint32_t kind;
  std::string payload;
  Status status = file_.Open();
  if (status.ok()) status = file_.Read(kMaxHeaderBytes, &kind, &payload);
  if (!status.ok()) return status;
  totals_ = stated_ = TableFileTotals();
  initial_bytes_ = 0;
  has_encoded_ = false;
  if (kind != kHeader || !ParseHeader(payload, file_.version(), &header_)) {
    return file_.Damaged("it does not begin with a table's header");
  }
  const char* fault = FindFault(header_, file_.bytes());
  return fault == nullptr ? Status() : file_.Damaged(std::string("its header has ") + fault);
}

FileSum TableFileReader::sum() const {
  FileSum sum = file_.sum();
  sum.id = header_.file_id;
  return sum;
}

bool TableFileReader::ReadRows(const std::string& payload, KeyedRows* rows) const {
  ByteReader in(payload);
  const uint64_t count = in.Get<uint64_t>();
  if (count > payload.size()) return false;
  for (auto* numbers : {&rows->keys, &rows->counts, &rows->versions}) in.GetVector(count, numbers);
  for (const int64_t number : rows->counts) {
    if (number < 0) return false;
  }
  in.GetVector(count * RowBytes(header_), &rows->values);
  rows->slots.resize(header_.slots.size());
  for (size_t s = 0; s < header_.slots.size(); ++s) {
    in.GetVector(count * SlotBytes(header_.slots[s]), &rows->slots[s]);
  }
  return in.Ended();
}

bool TableFileReader::ReadEncoded(const std::string& payload, EncodedRows* rows) const {
  ByteReader in(payload);
  const uint32_t format = in.Get<uint32_t>();
  const uint64_t count = in.Get<uint64_t>();
  if (format > static_cast<uint32_t>(RowFormat::kFp8) || count > payload.size()) return false;
  rows->format = static_cast<RowFormat>(format);
  in.GetVector(count, &rows->keys);
  in.GetVector(count * group_embedding::RowBytes(rows->format, header_.dim), &rows->rows);
  return in.Ended();
}

bool TableFileReader::ReadCounted(const std::string& payload, AdmissionState* state) const {
  ByteReader in(payload);
  const uint64_t count = payload.size() / (2 * sizeof(int64_t));
  in.GetVector(count, &state->keys);
  in.GetVector(count, &state->counts);
  for (const int64_t number : state->counts) {
    if (number < 1) return false;
  }
  return in.Ended() && (count == 0 || header_.admission.kind == Admission::Kind::kCounter);
}

// Sections follow each other, and end where the counters of the filter do.
bool TableFileReader::ReadCounters(const std::string& payload, TableFileBlock* block) const {
  ByteReader in(payload);
  block->first_counter_byte = in.Get<int64_t>();
  in.GetVector(in.left(), &block->admission.counters);
  const int64_t bytes = static_cast<int64_t>(block->admission.counters.size());
  return in.Ended() && block->first_counter_byte == totals_.counter_bytes &&
         bytes <= MaxCounterBytes(header_.admission) - totals_.counter_bytes;
}

bool TableFileReader::IsComplete() const {
  const int64_t counters = totals_.counter_bytes;
  return stated_ == totals_ && (counters == 0 || counters == MaxCounterBytes(header_.admission)) &&
         initial_bytes_ == header_.initial.matrix_rows * RowBytes(header_);
}

bool TableFileReader::ReadPayload(uint32_t kind, const std::string& payload,
                                  TableFileBlock* block) {
  ByteReader in(payload);
  switch (kind) {
    case kInitialRows:
      in.GetVector(payload.size(), &block->initial_rows);
      initial_bytes_ += static_cast<int64_t>(payload.size());
      return initial_bytes_ <= header_.initial.matrix_rows * RowBytes(header_);
    case kRows:
      return ReadRows(payload, &block->rows);
    case kEncodedRows:
      has_encoded_ = true;
      return ReadEncoded(payload, &block->encoded);
    case kErased:
      in.GetVector(payload.size() / sizeof(int64_t), &block->erased);
      return in.Ended();
    case kCounted:
      return ReadCounted(payload, &block->admission);
    case kCounters:
      return ReadCounters(payload, block);
    case kTotals:
      for (int64_t* total :
           {&stated_.num_rows, &stated_.num_erased, &stated_.num_counted, &stated_.counter_bytes}) {
        *total = in.Get<int64_t>();
      }
      return in.Ended();
    case kFooter:
      block->is_last = true;
      return in.Ended() && IsComplete();
    default:
      return false;
  }
}

Status TableFileReader::Next(TableFileBlock* block) {
  *block = TableFileBlock();
  uint32_t kind;
  std::string payload;
  // Blocks end before kBlockBytes, or have one row.
  const uint64_t max_bytes = kBlockBytes + BytesPerRow(header_);
  Status status = file_.Read(max_bytes, &kind, &payload);
  if (!status.ok()) return status;
  if (!ReadPayload(kind, payload, block)) {
    return file_.Damaged("a section of kind " + std::to_string(kind) + " has another content");
  }
  totals_.num_rows += static_cast<int64_t>(block->rows.keys.size() + block->encoded.keys.size());
  totals_.num_erased += static_cast<int64_t>(block->erased.size());
  totals_.num_counted += static_cast<int64_t>(block->admission.keys.size());
  totals_.counter_bytes += static_cast<int64_t>(block->admission.counters.size());
  return {};
}

}  // namespace group_embedding
