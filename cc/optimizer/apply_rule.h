// The one loop that applies a rule on the host: a row and its gradient -> the row and its slots.
#pragma once

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "core/rows.h"
#include "optimizer/rounding.h"
#include "optimizer/update.h"

namespace group_embedding {

static_assert(kDrawOfRow >= kMaxSlots);

// Applies Rule to rows of one table. T: of the rows, S: of the slots.
template <typename Rule, typename T, typename S>
class RowUpdater {
 public:
  RowUpdater(const Update& update, int64_t table, int64_t dim)
      : hyper_(*update.hyper),
        table_(update.tables[table]),
        dim_(dim),
        rounds_rows_(update.stochastic_rounding && sizeof(T) == 2),
        rounds_slots_(update.stochastic_slots && std::is_same_v<S, BFloat16>) {
    std::memcpy(&key_, &hyper_.rounding_key, sizeof(key_));
    if constexpr (!Rule::kNeedsRow) factor_ = Rule::Factor(hyper_);
    row_stream_ = RowStream(table_.rows, dim * sizeof(T));
    for (int k = 0; k < Rule::kNumSlots; ++k) {
      slot_streams_[k] = RowStream(table_.slots[k], (k == Rule::kRowSlot ? 1 : dim) * sizeof(S));
    }
  }

  // gradient: [dim]
  void operator()(int64_t row, const float* gradient) const {
    RowRandom random;
    if constexpr (kMayRound) {
      if (rounds_rows_ || rounds_slots_) random = RowRandom(key_, table_.keys.Of(row));
    }
    float factor = factor_;
    if constexpr (Rule::kNeedsRow) {
      const RowSums sums = SumRow(row, gradient, random);
      float slot = kHasRowSlot ? ToFloat(SlotAt(Rule::kRowSlot)[row]) : 0.0f;
      factor = Rule::Factor(hyper_, sums, dim_, &slot);
      if constexpr (kHasRowSlot) StoreRowSlot(slot, row, random);
    }
    ForColumns([&](auto type, int64_t column) {
      auto columns = Load<decltype(type)>(row, column, gradient);
      if constexpr (kSumsAgain) Rule::Sum(hyper_, columns.gradient, columns.row, columns.slots);
      Rule::Update(hyper_, factor, columns.gradient, columns.row, columns.slots);
      StoreRow(columns.row, row, random, column);
      if constexpr (!Rule::kNeedsRow || kSumsAgain) StoreSlots(columns, row, random, column);
    });
  }

  // Fetches rows that are updated soon, and their slots, in ascending order: `count` of them, from
  // `first` to `last`, then
  void Aim(int64_t first, int64_t last, int64_t count) {
    row_stream_.Aim(first, last, count);
    for (RowStream& stream : slot_streams_) stream.Aim(first, last, count);
  }
  // each.
  void Fetch(int64_t row) {
    row_stream_.Fetch(row);
    for (RowStream& stream : slot_streams_) stream.Fetch(row);
  }

 private:
  static constexpr int kSlots = std::max(1, Rule::kNumSlots);
  static constexpr bool kHasRowSlot = Rule::kRowSlot != kNoRowSlot;
  static constexpr bool kMayRound = sizeof(T) == 2 || std::is_same_v<S, BFloat16>;
  // A row is computed from slots as they were before they were rounded, as on the device.
  static constexpr bool kSumsAgain = Rule::kNeedsRow && sizeof(S) == 2;

  // A column, or eight, in float32. A slot that the table lacks is zero.
  template <typename V>
  struct Columns {
    V row, gradient, slots[kSlots];
  };

  // body(V, first column) for all columns: V is Float8, and float where fewer than eight are left.
  template <typename Body>
  void ForColumns(const Body& body) const {
    int64_t column = 0;
    for (; column + 8 <= dim_; column += 8) body(Float8{}, column);
    for (; column < dim_; ++column) body(0.0f, column);
  }

  template <typename V>
  Columns<V> Load(int64_t row, int64_t column, const float* gradient) const {
    Columns<V> columns;
    columns.row = DecayRow(hyper_, LoadAs<V>(RowAt(row, column)));
    // As if the gradient had been an IndexedSlices of the table's type.
    T rounded[8];
    StoreAs(LoadAs<V>(gradient + column), rounded);
    columns.gradient = PrepareGradient(hyper_, LoadAs<V>(rounded));
    for (int k = 0; k < kSlots; ++k) {
      const bool has_slot = IsPerColumn(k) && SlotAt(k) != nullptr;
      columns.slots[k] = has_slot ? LoadAs<V>(SlotAt(k) + row * dim_ + column) : V{};
    }
    return columns;
  }

  RowSums SumRow(int64_t row, const float* gradient, const RowRandom& random) const {
    RowSumsOf<Float8> wide;
    RowSums sums;
    ForColumns([&](auto type, int64_t column) {
      auto columns = Load<decltype(type)>(row, column, gradient);
      const auto part = Rule::Sum(hyper_, columns.gradient, columns.row, columns.slots);
      if constexpr (!kSumsAgain) StoreSlots(columns, row, random, column);
      if constexpr (std::is_same_v<decltype(type), float>) {
        sums.a += part.a, sums.b += part.b;
      } else {
        wide.a += part.a, wide.b += part.b;
      }
    });
    for (int j = 0; j < 8; ++j) sums.a += wide.a[j], sums.b += wide.b[j];
    return sums;
  }

  template <typename V>
  void StoreRow(V values, int64_t row, const RowRandom& random, int64_t column) const {
    T* to = RowAt(row, column);
    if constexpr (sizeof(T) == 2) {
      if (rounds_rows_) return StoreRounded(values, random.Draw(kDrawOfRow, From<V>(column)), to);
    }
    StoreAs(values, to);
  }

  template <typename V>
  void StoreSlots(const Columns<V>& columns, int64_t row, const RowRandom& random,
                  int64_t column) const {
    const auto has_slot = [&](int k) { return IsPerColumn(k) && SlotAt(k) != nullptr; };
    const int64_t at = row * dim_ + column;
    if constexpr (std::is_same_v<S, BFloat16>) {
      if (rounds_slots_) {
        for (int pair = 0; 2 * pair < Rule::kNumSlots; ++pair) {
          const auto two = random.DrawTwo(pair, From<V>(column));
          for (int k = 2 * pair; k < 2 * pair + 2; ++k) {
            if (!has_slot(k)) continue;
            StoreRounded(columns.slots[k], RowRandom::HalfOf(two, k), SlotAt(k) + at);
          }
        }
        return;
      }
    }
    for (int k = 0; k < Rule::kNumSlots; ++k) {
      if (has_slot(k)) StoreAs(columns.slots[k], SlotAt(k) + at);
    }
  }

  void StoreRowSlot(float value, int64_t row, const RowRandom& random) const {
    constexpr int k = Rule::kRowSlot;
    if constexpr (std::is_same_v<S, BFloat16>) {
      if (rounds_slots_) return StoreRounded(value, random.Draw(k, 0u), SlotAt(k) + row);
    }
    StoreAs(value, SlotAt(k) + row);
  }

  // The columns from one on: one, or eight.
  template <typename V>
  static auto From(int64_t column) {
    if constexpr (std::is_same_v<V, float>)
      return static_cast<uint32_t>(column);
    else
      return Bits8{0, 1, 2, 3, 4, 5, 6, 7} + static_cast<uint32_t>(column);
  }

  static void StoreRounded(float value, uint32_t random, BFloat16* to) {
    StoreAs(RoundToBFloat16(value, random), to);
  }
  static void StoreRounded(float value, uint32_t random, Float16* to) {
    StoreAs(RoundToFloat16(value, random), to);
  }
  static void StoreRounded(Float8 values, Bits8 random, BFloat16* to) {
    StoreHigh8(values, random, to);
  }
  static void StoreRounded(Float8 values, Bits8 random, Float16* to) {
    for (int j = 0; j < 8; ++j) values[j] = RoundToFloat16(values[j], random[j]);
    StoreAs(values, to);
  }

  template <typename V, typename From>
  static V LoadAs(const From* from) {
    if constexpr (std::is_same_v<V, float>)
      return ToFloat(*from);
    else
      return Load8(from);
  }
  template <typename To>
  static void StoreAs(float value, To* to) {
    *to = FromFloat<To>(value);
  }
  template <typename To>
  static void StoreAs(Float8 values, To* to) {
    Store8(values, to);
  }

  static constexpr bool IsPerColumn(int k) { return k < Rule::kNumSlots && k != Rule::kRowSlot; }
  S* SlotAt(int k) const { return static_cast<S*>(table_.slots[k]); }
  T* RowAt(int64_t row, int64_t column) const {
    return static_cast<T*>(table_.rows) + row * dim_ + column;
  }

  const Hyper hyper_;
  const TableUpdate table_;
  const int64_t dim_;
  const bool rounds_rows_, rounds_slots_;  // stochastically
  uint32_t key_;
  float factor_ = 0;  // of the step, for rules that do not need a row
  RowStream row_stream_, slot_streams_[kSlots];
};

// Calls `body(rule, row, slot)` with null pointers of the types of an update: slots are float32, of
// the rows' own type or, of a rule that HasSmallSlots, bfloat16.
template <typename Body>
void ForUpdate(RuleIndex rule, DataType dtype, DataType slot_dtype, Body&& body) {
  ForRule(rule, [&](auto chosen) {
    ForDataType(dtype, [&](auto* row) {
      if (slot_dtype == DataType::kFloat32) {
        return body(chosen, row, static_cast<float*>(nullptr));
      }
      if constexpr (kHasSmallSlots<decltype(chosen)>) {
        if (slot_dtype != dtype) return body(chosen, row, static_cast<BFloat16*>(nullptr));
      }
      body(chosen, row, row);
    });
  });
}

}  // namespace group_embedding
