// The kernels that locate keys, after those of sample_keys.h in some calls. Each step is one launch
// for all tables of a call:
//   0. CopyBeforeLocate   only while a snapshot is read: copies rows before they change
//      HalveCounts   one launch a table with a budget and too many counts of keys without a row
//   1. LocateKeys    finds rows, and counts their keys. One occurrence of a key without a row
//                    claims a slot of the index, and its other occurrences follow it
//      DecayCounts, CountFound   count, in tables whose counts decay: these are halved first
//   2. CountClaims, AddToBloom   only for tables with a filter: count the claimed keys
//   3. ChooseRows    chooses the claimed keys that get a row; a scan numbers them by first position
//   4. GiveRows      writes the new rows, and enters their numbers into the index; lends rows to
//                    keys without a place in a budget that start as no row of a matrix
//   5. TellFollowers copies the claiming occurrence's result to the other occurrences
//   6. WriteReads    only for tables with a filter: the rows to read, where they differ from the
//                    rows to train
//   7. Finish        updates the tables' counters
#pragma once

#include "table/device/device_bloom.cuh"
#include "table/device/find_slots.cuh"
#include "table/device/row_copies.cuh"
#include "table/device/start_rows.cuh"
#include "table/device/use_state.cuh"

namespace group_embedding {
namespace {

// More occurrences of a key that has a row.
__device__ void CountKey(const LocateArgs& args, const DeviceTableRef& table, int64_t row,
                         int64_t times) {
  RowInfo* info = &table.infos[row];
  atomicAdd(reinterpret_cast<unsigned long long*>(&info->count),
            static_cast<unsigned long long>(times));
  __stcg(reinterpret_cast<longlong2*>(&info->version), longlong2{args.step, table.clock});
  table.MarkTime(row);
  table.moves.Use(table.infos, row, table.clock);
}

// The row of a key that LocateKeys has found and not counted, as counts decay; or kNoRow.
__device__ int64_t RowToCount(const LocateArgs& args, const LocatePlace& place) {
  const bool is_found = place.is_key && place.table.decay_steps > 0 &&
                        KindOfClaim(args.claims[place.position()]) == ClaimKind::kNone;
  return is_found ? place.task.rows[place.i] : kNoRow;
}

// A thread has one key. The first occurrence of a key to write the step halves its count, before
// any is counted.
__global__ void __launch_bounds__(kLocateThreads) DecayCountsKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  const int64_t row = RowToCount(args, place);
  if (row < 0) return;
  RowInfo* info = &place.table.infos[row];
  const auto version =
      static_cast<int64_t>(atomicExch(reinterpret_cast<unsigned long long*>(&info->version),
                                      static_cast<unsigned long long>(args.step)));
  if (version == args.step) return;
  const int64_t count = __ldcg(&info->count);
  const int64_t decayed = DecayedCount(count, version, args.step, place.table.decay_steps);
  if (decayed != count) __stcg(&info->count, decayed);
}

// A thread has one key.
__global__ void __launch_bounds__(kLocateThreads) CountFoundKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  const int64_t row = RowToCount(args, place);
  if (row >= 0) CountKey(args, place.table, row, place.times());
}

__device__ bool ClaimsOfCall(const LocateArgs& args, int64_t table) {
  return args.claim_areas[table].num_buckets > 0;
}

// A warp finds its keys; new ones claim slots of the index, or of the call.
template <bool kTrain, bool kOfCall>
__device__ FoundKey FindOrClaim(const LocateArgs& args, const LocatePlace& place, int64_t key) {
  if (!kOfCall || !ClaimsOfCall(args, place.task.table)) {
    return SlotSearch<kTrain>(args, place, key).Run();
  }
  const FoundKey found = SlotSearch<false>(args, place, key).Run();
  const bool is_new = place.is_key && found.row < 0;
  FoundKey claimed = SlotSearch<true>(args, place, key, args.claim_slots,
                                      args.claim_areas[place.task.table], is_new)
                         .Run();
  claimed.met_candidate = found.met_candidate;
  return is_new ? claimed : found;
}

// A thread finds one key, together with its warp. kOfCall: of some tables, new keys claim slots of
// the call.
template <bool kTrain, bool kOfCall>
__global__ void __launch_bounds__(kLocateThreads) LocateKeysKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  const int64_t key = place.is_key ? place.task.keys[place.i] : 0;
  const FoundKey found = FindOrClaim<kTrain, kOfCall>(args, place, key);
  CountByTier(place.table, found.row);
  if (!place.is_key) return;
  if (!kTrain) {
    place.task.rows[place.i] = found.row >= 0 ? found.row : place.table.DefaultRow(key);
    if (found.row >= 0) place.table.moves.Use(place.table.infos, found.row, place.table.clock);
    return;
  }
  const int64_t position = place.position();
  args.claims[position] = found.claim;
  args.gets_row[position] = 0;
  if (args.counts != nullptr) {
    args.counts[position] = 0;
    args.candidates[position] = found.met_candidate;
  }
  if (found.row < 0) return;
  place.task.rows[place.i] = found.row;
  if (place.table.decay_steps == 0) CountKey(args, place.table, found.row, place.times());
}

// A thread finds one key, together with its warp, and marks its row as one of the next batch.
__global__ void __launch_bounds__(kLocateThreads) MarkNextKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  const int64_t key = place.is_key ? place.task.keys[place.i] : 0;
  const int64_t row = SlotSearch<false>(args, place, key).Run().row;
  if (row < 0) return;
  uint32_t* word = &place.table.moves.is_next[row / 32];
  const uint32_t bit = 1u << (row % 32);
  if (!(__ldcg(word) & bit)) atomicOr(word, bit);
}

// A thread finds one key, together with its warp. The content of rows whose counts are about to
// change is copied for the snapshot that is read.
__global__ void __launch_bounds__(kLocateThreads) CopyBeforeLocateKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (place.table.copies == nullptr) return;
  const int64_t key = place.is_key ? place.task.keys[place.i] : 0;
  CopyForSnapshot(*place.table.copies, SlotSearch<false>(args, place, key).Run().row);
}

// A thread has one key.
__global__ void __launch_bounds__(kLocateThreads) CountClaimsKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (!place.is_key) return;
  const int64_t position = place.position();
  const uint64_t claim = args.claims[position];
  if (KindOfClaim(claim) == ClaimKind::kNone) return;
  const bool is_follower = KindOfClaim(claim) == ClaimKind::kFollower;
  int64_t count = args.admits_all ? 0 : place.times();
  if (!is_follower && args.candidates[position] != 0) {
    count += place.table.candidates[args.candidates[position] - 1].count;
  }
  auto* counts = reinterpret_cast<unsigned long long*>(args.counts);
  atomicAdd(&counts[is_follower ? NumberOfClaim(claim) : position],
            static_cast<unsigned long long>(count));
}

// A thread has one key.
__global__ void __launch_bounds__(kLocateThreads) AddToBloomKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (!place.is_key || place.table.bloom == nullptr) return;
  if (KindOfClaim(args.claims[place.position()]) != ClaimKind::kSlot) return;
  DeviceBloom(place.table.bloom, place.table.admission)
      .Add(IndexRef::HashOf(place.task.keys[place.i]), args.counts[place.position()]);
}

__device__ bool IsAdmitted(const LocateArgs& args, const LocatePlace& place) {
  const Admission& admission = place.table.admission;
  if (args.admits_all || admission.kind == Admission::Kind::kAll) return true;
  int64_t* count = &args.counts[place.position()];
  if (admission.kind == Admission::Kind::kBloom) {
    *count =
        DeviceBloom(place.table.bloom, admission).Count(IndexRef::HashOf(place.task.keys[place.i]));
  }
  return *count >= MinCountOf(admission, place.task.keys[place.i]);
}

// A thread has one key.
__global__ void __launch_bounds__(kLocateThreads) ChooseRowsKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (!place.is_key) return;
  if (KindOfClaim(args.claims[place.position()]) != ClaimKind::kSlot) return;
  if (IsAdmitted(args, place)) args.gets_row[place.FirstPosition(args)] = 1;
}

// The rank-th row that the call takes, or kNoRow.
__device__ int64_t RowOfRank(const DeviceTableRef& table, int64_t rank) {
  const TableState& state = *table.state;
  const int64_t row = rank < state.num_free ? table.free_rows[state.num_free - 1 - rank]
                                            : state.next_row + rank - state.num_free;
  return row < table.usable_rows ? row : kNoRow;
}

// How many keys of a table the call gives rows, if there are so many.
__device__ int64_t NumRowsWanted(const LocateArgs& args, int64_t table) {
  return args.ranks[args.table_positions[table + 1]] - args.ranks[args.table_positions[table]];
}

// The row of a claimed key, or kNoRow.
__device__ int64_t NewRow(const LocateArgs& args, const LocatePlace& place) {
  const int64_t first = place.FirstPosition(args);
  if (!args.gets_row[first]) return kNoRow;
  const int64_t first_of_table = args.ranks[args.table_positions[place.task.table]];
  return RowOfRank(place.table, args.ranks[first] - first_of_table);
}

// A row lent to a claimed key without one, for its batch. It is none of those that the call gives.
// kNoRow: none is left.
__device__ int64_t LentRow(const LocateArgs& args, const LocatePlace& place) {
  if (!place.table.lends || args.admits_all) return kNoRow;
  const auto before = static_cast<int64_t>(atomicAdd(&place.table.state->lent_asked_for, 1ULL));
  return RowOfRank(place.table, NumRowsWanted(args, place.task.table) + before);
}

// A key that is not admitted is a candidate from now on, or still; its number.
__device__ int64_t KeepCandidate(const LocateArgs& args, const LocatePlace& place, int64_t key) {
  const int64_t position = place.position();
  const DeviceTableRef& table = place.table;
  int64_t candidate = args.candidates[position] - 1;
  if (candidate < 0) {
    const TableState& state = *table.state;
    const int64_t taken = atomicAdd(&table.state->candidates_taken, 1ULL);
    candidate = taken < state.num_free_candidates
                    ? table.free_candidates[state.num_free_candidates - 1 - taken]
                    : state.next_candidate + taken - state.num_free_candidates;
  }
  table.candidates[candidate] = {key, args.counts[position]};
  return candidate;
}

// Whether a key without a row is a candidate from now on. Rows that are given count nothing.
__device__ bool IsCounted(const LocateArgs& args, const LocatePlace& place, bool was_candidate) {
  return place.table.admission.kind == Admission::Kind::kCounter &&
         (was_candidate || !args.admits_all);
}

// As PublishSlot, of a key that has claimed a slot of the call: the index has a slot for it only if
// it was a candidate.
__device__ bool PutIntoIndex(const LocateArgs& args, const LocatePlace& place, int64_t key,
                             int64_t row) {
  const IndexRef& index = place.table.index;
  const uint64_t hash = IndexRef::HashOf(key);
  const bool has_row = row != kNoRow;
  const int64_t former = args.candidates == nullptr ? 0 : args.candidates[place.position()];
  if (!has_row && !IsCounted(args, place, former > 0)) return false;
  const int64_t number = has_row ? row : KeepCandidate(args, place, key);
  if (former == 0) {
    __threadfence();  // the candidate is written before its number is in the index
    index.PutInto(index.AreaOf(hash), hash, has_row ? SlotKind::kRow : SlotKind::kCandidate,
                  number);
  } else if (has_row) {
    const uint32_t tag = IndexRef::TagOf(hash);
    index.Replace(hash, SlotWord::Make(tag, SlotKind::kCandidate, former - 1),
                  SlotWord::Make(tag, SlotKind::kRow, row));
  }
  return former == 0;
}

// Writes the final word of a claimed slot: the key's row or candidate, or frees the slot if the key
// has neither. Returns whether the index has one more slot in use.
template <bool kHasBudget>
__device__ bool PublishSlot(const LocateArgs& args, const LocatePlace& place, int64_t key,
                            int64_t row) {
  if (kHasBudget && ClaimsOfCall(args, place.task.table)) {
    return PutIntoIndex(args, place, key, row);
  }
  const IndexRef& index = place.table.index;
  uint64_t* slot = index.slots + NumberOfClaim(args.claims[place.position()]);
  const uint32_t tag = IndexRef::TagOf(IndexRef::HashOf(key));
  const bool was_candidate = args.candidates != nullptr && args.candidates[place.position()] != 0;
  if (row != kNoRow) {
    __stcg(slot, SlotWord::Make(tag, SlotKind::kRow, row));
  } else if (IsCounted(args, place, was_candidate)) {
    const int64_t candidate = KeepCandidate(args, place, key);
    __threadfence();
    __stcg(slot, SlotWord::Make(tag, SlotKind::kCandidate, candidate));
  } else {
    index.Free(slot);
    return __ldcg(slot) != kEmptySlot;
  }
  return !was_candidate;
}

// A thread has one key; a warp writes the rows of its 32 keys together. kHasBudget: some tables
// have one.
template <bool kHasBudget>
__global__ void __launch_bounds__(kLocateThreads) GiveRowsKernel(LocateArgs args) {
  __shared__ int64_t new_rows[kLocateThreads], new_keys[kLocateThreads];
  const LocatePlace place = LocatePlace::Of(args);
  const DeviceTableRef& table = place.table;
  const bool has_claim =
      place.is_key && KindOfClaim(args.claims[place.position()]) == ClaimKind::kSlot;
  if (!__any_sync(kFullWarp, has_claim)) return;
  const int lane = threadIdx.x % kWarpSize, warp_begin = threadIdx.x - lane;
  const int64_t key = has_claim ? place.task.keys[place.i] : 0;
  int64_t row = has_claim ? NewRow(args, place) : kNoRow;
  const bool is_keys = row != kNoRow;
  if (kHasBudget && has_claim && !is_keys) row = LentRow(args, place);
  const unsigned votes = __ballot_sync(kFullWarp, row != kNoRow);
  if (is_keys) {
    const bool is_counted = table.admission.kind != Admission::Kind::kAll;
    table.infos[row] = {key, is_counted ? args.counts[place.position()] : place.times(), args.step,
                        table.clock};
    table.moves.Use(table.infos, row, table.clock);
    if (table.copies != nullptr) MarkNew(*table.copies, row);
  }
  if (row != kNoRow) {
    if (kHasBudget && !is_keys) table.infos[row] = {key, kLentCount, args.step, table.clock};
    const int at = warp_begin + __popc(votes & ((1u << lane) - 1));
    new_rows[at] = row;
    new_keys[at] = key;
  }
  __syncwarp();
  StartRows(table, new_rows + warp_begin, new_keys + warp_begin, __popc(votes), lane);
  __syncwarp();  // another lane has written the initial values of the row's slots
  if (is_keys) {
    table.MarkTime(row);
    if (table.born != nullptr) __stcg(&table.born[row], BornMark(args.step));
  }
  // The row is written before its number is in the index.
  __threadfence();
  __syncwarp();
  bool uses_slot = false;
  if (has_claim) {
    uses_slot = PublishSlot<kHasBudget>(args, place, key, is_keys ? row : kNoRow);
    place.task.rows[place.i] = row != kNoRow ? row : table.DefaultRow(key);
  }
  const int num_slots = __popc(__ballot_sync(kFullWarp, uses_slot));
  if (lane == 0 && num_slots > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&table.state->used_slots),
              static_cast<unsigned long long>(num_slots));
  }
}

// A candidate's number may be given to another key.
__device__ void FreeCandidate(const DeviceTableRef& table, int64_t candidate) {
  TableState& state = *table.state;
  const int64_t taken =
      min(static_cast<int64_t>(state.candidates_taken), state.num_free_candidates);
  table.candidates[candidate].count = 0;
  const int64_t freed = atomicAdd(&state.candidates_freed, 1ULL);
  table.free_candidates[state.num_free_candidates - taken + freed] = candidate;
}

// A thread has one key.
__global__ void __launch_bounds__(kLocateThreads) TellFollowersKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (!place.is_key) return;
  const DeviceTableRef& table = place.table;
  const uint64_t claim = args.claims[place.position()];
  if (KindOfClaim(claim) == ClaimKind::kFollower) {
    const int64_t followed = NumberOfClaim(claim);
    const LocateTask& task = TaskAt(args, followed);
    const int64_t row = task.rows[followed - task.first_position];
    place.task.rows[place.i] = row;
    const bool is_keys = row >= table.first_row && !table.IsLent(row);
    if (is_keys && table.admission.kind == Admission::Kind::kAll) {
      CountKey(args, table, row, place.times());
    }
  } else if (KindOfClaim(claim) == ClaimKind::kSlot && args.candidates != nullptr) {
    const int64_t candidate = args.candidates[place.position()];
    if (candidate != 0 && place.task.rows[place.i] >= table.first_row) {
      FreeCandidate(table, candidate - 1);
    }
  }
}

// A thread has one key.
template <bool kTrain>
__global__ void __launch_bounds__(kLocateThreads) WriteReadsKernel(LocateArgs args) {
  const LocatePlace place = LocatePlace::Of(args);
  if (!place.is_key || place.task.reads == nullptr) return;
  // A claimed key had no row before the call. If a filter admits keys, all such keys read the same
  // row. The keys themselves may be overwritten: `rows` may be `keys`.
  const bool reads_default = kTrain && place.table.admission.kind != Admission::Kind::kAll &&
                             KindOfClaim(args.claims[place.position()]) != ClaimKind::kNone;
  place.task.reads[place.i] =
      reads_default ? place.table.initial.matrix_rows : place.task.rows[place.i];
}

// A thread has one table.
__global__ void FinishKernel(LocateArgs args) {
  const int64_t t = blockIdx.x * blockDim.x + threadIdx.x;
  if (t >= args.num_tables) return;
  const DeviceTableRef& table = args.tables[t];
  TableState state = *table.state;
  const int64_t wanted = NumRowsWanted(args, t);
  const int64_t left = state.num_free + table.usable_rows - state.next_row;
  const int64_t given = min(wanted, left);
  const int64_t lent = min(static_cast<int64_t>(state.lent_asked_for), left - given);
  const int64_t reused = min(given + lent, state.num_free);
  state.is_full = given < wanted;
  state.num_free -= reused;
  state.next_row += given + lent - reused;
  state.num_keys += given;
  if (table.num_admitted != nullptr) *table.num_admitted += given;
  state.lent_asked_for = 0;
  const int64_t taken = state.candidates_taken;
  const int64_t taken_free = min(taken, state.num_free_candidates);
  state.num_free_candidates += static_cast<int64_t>(state.candidates_freed) - taken_free;
  state.next_candidate += taken - taken_free;
  state.candidates_taken = state.candidates_freed = 0;
  *table.state = state;
  table.report->state = state;
  __threadfence_system();
  *reinterpret_cast<volatile int64_t*>(&table.report->enqueued) = table.enqueued;
}

}  // namespace
}  // namespace group_embedding
