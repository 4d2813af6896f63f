#include "table/disk/insert_in_tiers.h"

#include <algorithm>
#include <exception>
#include <string>
#include <vector>

#include "table/complete_rows.h"
#include "table/disk/insert_plan.h"
#include "table/no_memory.h"

namespace group_embedding {
namespace {

// Returns the keys, of these, that have a row in memory.
std::vector<int64_t> InMemory(const std::vector<int64_t>& keys, const UpperTier& memory) {
  std::vector<int64_t> rows(keys.size()), found;
  memory.find(keys, rows.data());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (rows[i] != kNoRow) found.push_back(keys[i]);
  }
  return found;
}

Status InsertAbove(const TableOptions& options, const KeyedRows& rows,
                   const std::vector<size_t>& chosen, const UpperTier& memory) {
  try {
    return CatchNoMemory(options, [&] { return memory.insert(rows, chosen); });
  } catch (const std::exception& error) {  // such as of a GPU
    return std::string(error.what());
  }
}

// A key's former row on disk goes once its given one is in memory.
Status InsertSome(const TableOptions& options, const KeyedRows& rows, size_t begin, size_t end,
                  const UpperTier& memory, RowsOnDisk* disk) {
  InsertPlan plan(rows, begin, end);
  FoundOnDisk former;
  Status status = disk->FindAll(plan.keys(), &former);
  if (!status.ok()) return status;
  std::vector<int64_t> in_memory(plan.keys().size());
  memory.find(plan.keys(), in_memory.data());
  const UpperTier::Space space = memory.space();
  plan.Split(in_memory, space.num_free);
  status = disk->CheckSize(static_cast<int64_t>(plan.below().size()),
                           static_cast<int64_t>(former.keys.size()));
  if (!status.ok()) return status;
  const Status inserted = InsertAbove(options, rows, plan.above(), memory);
  if (!inserted.ok()) former.keys = InMemory(former.keys, memory);
  status = disk->Erase(former.keys);
  if (!inserted.ok()) return inserted;
  if (status.ok()) status = disk->Insert(rows, plan.below(), space.clock);
  if (status.ok()) memory.drop_counts(plan.KeysBelow(rows));
  return status;
}

}  // namespace

Status InsertInTiers(const EmbeddingTable& table, const KeyedRowsView& given, int64_t at_once,
                     const UpperTier& memory, RowsOnDisk* disk) {
  KeyedRows rows;
  Status status = CompleteRows(table, given, &rows);
  if (status.ok()) status = disk->failed();
  const size_t num_rows = rows.keys.size();
  for (size_t begin = 0; begin < num_rows && status.ok(); begin += at_once) {
    const size_t end = std::min(begin + at_once, num_rows);
    status = InsertSome(table.options(), rows, begin, end, memory, disk);
  }
  return status;
}

}  // namespace group_embedding
