// ServedIndex: key -> row number, read without locks while one thread changes it.
//
// Open addressing with linear probing, in parts that grow one at a time. A key is looked for in a
// whole cache line at a time. A cell is taken once, for one key: its row is stored last, so that a
// reader that sees a row sees its key. An erased key keeps its cell until its part grows. A part
// that grows is copied; readers go on in the former one, which the index keeps until
// DropFormerParts.
//
// A row may be marked, where the index is that of a cache: with the second in which it was last
// asked for, and as one that stays. Both are bits beside the row's number.
//
// Thread safety: any number of threads may call Find and FindAndMark at a time, and one other
// thread the rest.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "table/initial_values.h"
#include "table/zeroed_memory.h"

namespace group_embedding {

class ServedIndex {
 public:
  // No key has a negative row.
  static constexpr int64_t kNone = -1;

  // With space for `num_keys` keys before it grows.
  explicit ServedIndex(int64_t num_keys) {
    while (num_keys >> part_bits_ > kKeysPerPart && part_bits_ < 16) ++part_bits_;
    parts_ = std::vector<std::atomic<Part*>>(size_t{1} << part_bits_);
    const int64_t keys_per_part = num_keys >> part_bits_;
    const int64_t num_lines = LinesOf(keys_per_part + keys_per_part / 64 + 8);
    // One after the other, so that many small parts need few large pages.
    const Lines all = MakeLines(num_lines * static_cast<int64_t>(parts_.size()));
    for (size_t p = 0; p < parts_.size(); ++p) {
      Lines lines(all, all.get() + static_cast<int64_t>(p) * num_lines);
      parts_[p].store(Own(std::move(lines), num_lines), std::memory_order_relaxed);
    }
  }
  ServedIndex(const ServedIndex&) = delete;
  ServedIndex& operator=(const ServedIndex&) = delete;

  static uint64_t HashOf(int64_t key) { return MixBits(static_cast<uint64_t>(key)); }

  void Prefetch(uint64_t hash) const {
    const Part* part = PartOf(hash).load(std::memory_order_acquire);
    __builtin_prefetch(&part->LineAt(part->FirstOf(hash)), 0, 3);
  }

  // Calls body(i, hash of keys[i]) for each key in order. Its cells are fetched kKeysAhead calls
  // before, so that the body finds them in the cache.
  template <typename Body>
  void ForHashes(const int64_t* keys, int64_t num_keys, const Body& body) const {
    uint64_t hashes[kKeysAhead];  // of key i at i modulo kKeysAhead
    const auto fetch = [&](int64_t i) {
      const uint64_t hash = HashOf(keys[i]);
      Prefetch(hash);
      return hash;
    };
    for (int64_t i = 0; i < std::min(kKeysAhead, num_keys); ++i) hashes[i] = fetch(i);
    for (int64_t i = 0; i < num_keys; ++i) {
      uint64_t& place = hashes[static_cast<uint64_t>(i) % kKeysAhead];
      const uint64_t hash = place;
      if (i + kKeysAhead < num_keys) place = fetch(i + kKeysAhead);
      body(i, hash);
    }
  }

  // The key's row, or kNone.
  int64_t Find(int64_t key, uint64_t hash) const {
    const Cell* cell = PartOf(hash).load(std::memory_order_acquire)->Probe(key, hash);
    const int64_t row = cell->row.load(std::memory_order_acquire);
    return IsOf(key, *cell, row) ? row & kRowMask : kNone;
  }

  // Find, which also remembers the second, where it differs.
  int64_t FindAndMark(int64_t key, uint64_t hash, int64_t second) const {
    Cell* cell = PartOf(hash).load(std::memory_order_acquire)->Probe(key, hash);
    const int64_t row = cell->row.load(std::memory_order_acquire);
    if (!IsOf(key, *cell, row)) return kNone;
    if (((row ^ SecondBits(second)) & kSecondMask) != 0) Mark(&cell->row, row, second);
    return row & kRowMask;
  }

  // Whether the key has a row that stays.
  bool Stays(int64_t key, uint64_t hash) const {
    const Cell* cell = PartOf(hash).load(std::memory_order_acquire)->Probe(key, hash);
    const int64_t row = cell->row.load(std::memory_order_relaxed);
    return row >= 0 && (row & kStays) != 0;
  }

  // Gives the key this row. Returns its former row, or kNone.
  int64_t Set(int64_t key, int64_t row, bool stays = false, int64_t second = 0) {
    const uint64_t hash = HashOf(key);
    std::atomic<Part*>& slot = PartOf(hash);
    Part* part = slot.load(std::memory_order_relaxed);
    Cell* cell = part->Probe(key, hash);
    if (cell->row.load(std::memory_order_relaxed) == kFree) {
      if (part->is_full()) {
        part = Grow(&slot);
        cell = part->Probe(key, hash);
      }
      cell->key.store(key, std::memory_order_relaxed);
      ++part->num_taken;
    }
    const int64_t former = cell->row.load(std::memory_order_relaxed);
    cell->row.store(row | SecondBits(second) | (stays ? kStays : 0), std::memory_order_release);
    size_ += former < 0;
    return former < 0 ? kNone : former & kRowMask;
  }

  // Returns the row that the key had, or kNone.
  int64_t Erase(int64_t key) {
    const uint64_t hash = HashOf(key);
    Cell* cell = PartOf(hash).load(std::memory_order_relaxed)->Probe(key, hash);
    const int64_t former = cell->row.load(std::memory_order_relaxed);
    if (former < 0) return kNone;
    cell->row.store(kErased, std::memory_order_release);
    --size_;
    return former & kRowMask;
  }

  // Calls body(key, row, seconds since it was asked for) for the rows that do not stay, in the next
  // `num_cells` cells; goes round and round from call to call.
  template <typename Body>
  void ScanOn(int64_t num_cells, int64_t second, const Body& body) {
    for (size_t parts = 0; num_cells > 0 && parts <= parts_.size(); ++parts) {
      const Part* part = parts_[scan_part_].load(std::memory_order_relaxed);
      for (; scan_cell_ < part->num_cells() && num_cells > 0; ++scan_cell_, --num_cells) {
        const Cell& cell = part->CellAt(scan_cell_);
        const int64_t row = cell.row.load(std::memory_order_relaxed);
        if (row < 0 || (row & kStays) != 0) continue;
        const int64_t age = ((SecondBits(second) - (row & kSecondMask)) & kSecondMask) >> kRowBits;
        // Half of all ages stand for seconds after this one: a request may have marked it since.
        body(cell.key.load(std::memory_order_relaxed), row & kRowMask, age >> 21 ? 0 : age);
      }
      if (scan_cell_ < part->num_cells()) return;
      scan_cell_ = 0;
      scan_part_ = (scan_part_ + 1) % parts_.size();
    }
  }

  int64_t num_cells() const {
    int64_t cells = 0;
    for (const auto& part : parts_) cells += part.load(std::memory_order_relaxed)->num_cells();
    return cells;
  }

  int64_t size() const { return size_; }

  int64_t bytes() const {
    int64_t cells = 0;
    for (const auto& part : owned_) cells += part->num_cells();
    return cells * static_cast<int64_t>(sizeof(Cell));
  }

  size_t num_former_parts() const { return former_.size(); }

  // Once no reader is left that began before the last Set.
  void DropFormerParts() { DropFormerParts(former_.size()); }
  // The oldest of them, once no reader is left that began before they were replaced.
  void DropFormerParts(size_t count) {
    if (count == 0) return;
    const auto end = former_.begin() + count;
    const auto is_dropped = [&](const auto& part) {
      return std::find(former_.begin(), end, part.get()) != end;
    };
    owned_.erase(std::remove_if(owned_.begin(), owned_.end(), is_dropped), owned_.end());
    former_.erase(former_.begin(), end);
  }

  // body(key, row) for every key that has a row. For the thread that changes the index.
  template <typename Body>
  void ForEach(const Body& body) const {
    for (const auto& part : parts_) {
      part.load(std::memory_order_relaxed)->ForEach([&](int64_t key, int64_t row, int64_t) {
        body(key, row);
      });
    }
  }

 private:
  static constexpr int64_t kKeysPerPart = int64_t{1} << 16;
  static constexpr int64_t kKeysAhead = 32;  // as many as a core waits for at a time
  static constexpr int64_t kFree = -1, kErased = -2;
  // Bits of a cell: the row, 22 bits of the second (ages up to 24 days), whether it stays.
  static constexpr int kRowBits = 40, kSecondBits = 22;
  static constexpr int64_t kRowMask = (int64_t{1} << kRowBits) - 1;
  static constexpr int64_t kSecondMask = ((int64_t{1} << kSecondBits) - 1) << kRowBits;
  static constexpr int64_t kStays = int64_t{1} << (kRowBits + kSecondBits);

  static int64_t SecondBits(int64_t second) {
    return static_cast<int64_t>(static_cast<uint64_t>(second) << kRowBits) & kSecondMask;
  }

  struct Cell {
    std::atomic<int64_t> key{0}, row{kFree};
  };

  static constexpr int64_t kCellsPerLine = 4;

  // A cache line. Cells are taken from the first one on.
  struct alignas(kCellsPerLine * sizeof(Cell)) Line {
    Cell cells[kCellsPerLine];

    // The key's cell, or else the first free one, or null. All keys are compared before a branch:
    // which cell has the key is by chance, and processors wait for what they guess wrongly. Keys of
    // free cells are 0, and are behind the cell of key 0, if that is taken.
    Cell* Find(int64_t key) {
      unsigned equal = 0;
#pragma GCC unroll 4
      for (int i = 0; i < kCellsPerLine; ++i) {
        equal |= unsigned{cells[i].key.load(std::memory_order_relaxed) == key} << i;
      }
      if (equal != 0) return &cells[__builtin_ctz(equal)];
      for (Cell& cell : cells) {
        if (cell.row.load(std::memory_order_acquire) == kFree) return &cell;
      }
      return nullptr;
    }
  };

  // Once a second and key: not inlined, so that lookups keep what they have in registers. Fails if
  // the row was taken away or replaced meanwhile: then there is nothing to mark.
  [[gnu::noinline]] static void Mark(std::atomic<int64_t>* cell, int64_t row, int64_t second) {
    const int64_t marked = (row & ~kSecondMask) | SecondBits(second);
    cell->compare_exchange_strong(row, marked, std::memory_order_relaxed);
  }

  // Whether the row that was read from the cell is the key's: a cell that was free in Probe may
  // have been taken by another key since.
  static bool IsOf(int64_t key, const Cell& cell, int64_t row) {
    return row >= 0 && cell.key.load(std::memory_order_relaxed) == key;
  }

  // The first of some lines, and a share of the memory that has them.
  using Lines = std::shared_ptr<Line>;

  // As many as the keys need, which begin with two thirds of the cells.
  static int64_t LinesOf(int64_t num_keys) {
    return (num_keys + num_keys / 2 + 8 + kCellsPerLine - 1) / kCellsPerLine;
  }

  static Lines MakeLines(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(Line));
    auto memory = std::make_shared<ZeroedMemory>(bytes);
    Line* lines = static_cast<Line*>(memory->data());
    for (int64_t i = 0; i < count; ++i) new (lines + i) Line;
    return Lines(std::move(memory), lines);
  }

  struct Part {
    Part(Lines lines, int64_t num_lines) : num_lines(num_lines), lines(std::move(lines)) {}

    int64_t num_cells() const { return num_lines * kCellsPerLine; }
    Line& LineAt(int64_t at) const { return lines.get()[at]; }
    Cell& CellAt(int64_t at) const { return LineAt(at / kCellsPerLine).cells[at % kCellsPerLine]; }
    // Beyond three quarters, probing becomes long.
    bool is_full() const { return 4 * (num_taken + 1) > 3 * num_cells(); }

    // The low half of the hash, scaled: the number of lines need not be a power of two.
    int64_t FirstOf(uint64_t hash) const {
      return static_cast<int64_t>((hash & 0xffffffffu) * static_cast<uint64_t>(num_lines) >> 32);
    }

    // The key's cell, or the free one where it belongs. A part always has a free cell.
    Cell* Probe(int64_t key, uint64_t hash) const {
      for (int64_t at = FirstOf(hash);; at = at + 1 == num_lines ? 0 : at + 1) {
        if (Cell* cell = LineAt(at).Find(key)) return cell;
      }
    }

    template <typename Body>
    void ForEach(const Body& body) const {
      for (int64_t c = 0; c < num_cells(); ++c) {
        const Cell& cell = CellAt(c);
        const int64_t row = cell.row.load(std::memory_order_relaxed);
        if (row >= 0) body(cell.key.load(std::memory_order_relaxed), row & kRowMask, row);
      }
    }

    const int64_t num_lines;
    int64_t num_taken = 0;  // cells that are not free
    const Lines lines;
  };

  // The high bits choose the part. Shifts by less than 64 bits, also with one part.
  std::atomic<Part*>& PartOf(uint64_t hash) { return parts_[hash >> 1 >> (63 - part_bits_)]; }
  const std::atomic<Part*>& PartOf(uint64_t hash) const {
    return parts_[hash >> 1 >> (63 - part_bits_)];
  }

  Part* Own(Lines lines, int64_t num_lines) {
    owned_.push_back(std::make_unique<Part>(std::move(lines), num_lines));
    return owned_.back().get();
  }

  // A larger copy of a part, without erased keys, takes its slot.
  Part* Grow(std::atomic<Part*>* slot) {
    Part* former = slot->load(std::memory_order_relaxed);
    int64_t num_keys = 0;
    former->ForEach([&](int64_t, int64_t, int64_t) { ++num_keys; });
    former_.reserve(former_.size() + 1);
    const int64_t num_lines = LinesOf(num_keys + num_keys / 4 + 8);
    Part* part = Own(MakeLines(num_lines), num_lines);
    former->ForEach([part](int64_t key, int64_t, int64_t marked) {
      Cell* cell = part->Probe(key, HashOf(key));
      cell->key.store(key, std::memory_order_relaxed);
      cell->row.store(marked, std::memory_order_relaxed);
      ++part->num_taken;
    });
    slot->store(part, std::memory_order_release);
    former_.push_back(former);
    return part;
  }

  int part_bits_ = 0;
  std::vector<std::atomic<Part*>> parts_;     // [2^part_bits_]
  std::vector<std::unique_ptr<Part>> owned_;  // parts, and former ones
  std::vector<Part*> former_;
  int64_t size_ = 0;
  size_t scan_part_ = 0;  // where ScanOn goes on
  int64_t scan_cell_ = 0;
};

}  // namespace group_embedding
