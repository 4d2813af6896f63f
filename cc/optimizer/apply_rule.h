// The one loop that applies a rule on the host: a row and its gradient -> the row and its slots.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/rows.h"
#include "optimizer/rounding.h"
#include "optimizer/update.h"

namespace group_embedding {

// Applies Rule to rows of one table. T: of the rows, S: of the slots. Columns are taken a block at
// a time into arrays of floats, for which the compiler makes vector code of any rule.
template <typename Rule, typename T, typename S>
class RowUpdater {
 public:
  RowUpdater(const Update& update, int64_t table, int64_t dim)
      : hyper_(*update.hyper),
        table_(update.tables[table]),
        dim_(dim),
        rounds_stochastically_(update.stochastic_rounding && sizeof(T) == 2) {
    std::memcpy(&key_, &hyper_.rounding_key, sizeof(key_));
  }

  // gradient: [dim]
  void operator()(int64_t row, const float* gradient) const {
    float factor = 0;
    float row_slot = 0;
    if constexpr (Rule::kNeedsRow) {
      RowSums sums;
      for (int64_t column = 0; column < dim_; column += kBlock) {
        Columns columns(*this, row, column, gradient);
        sums = Sum(&columns, sums);
        if constexpr (!Rule::kSlotPerRow) columns.StoreSlots();
      }
      if constexpr (Rule::kSlotPerRow) row_slot = ToFloat(Slot(0)[row]);
      factor = Rule::Factor(hyper_, sums, dim_, &row_slot);
      if constexpr (Rule::kSlotPerRow) Slot(0)[row] = FromFloat<S>(row_slot);
    }
    for (int64_t column = 0; column < dim_; column += kBlock) {
      Columns columns(*this, row, column, gradient);
      for (int j = 0; j < kBlock; ++j) {
        float slots[kSlots];
        for (int k = 0; k < kSlots; ++k) slots[k] = columns.slots[k][j];
        Rule::Update(hyper_, factor, columns.gradient[j], columns.row[j], slots);
        for (int k = 0; k < kSlots; ++k) columns.slots[k][j] = slots[k];
      }
      columns.StoreRow();
      if constexpr (!Rule::kSlotPerRow && !Rule::kNeedsRow) columns.StoreSlots();
    }
  }

  void Prefetch(int64_t row) const {
    PrefetchRow(static_cast<const T*>(table_.rows) + row * dim_, dim_);
    for (int k = 0; k < Rule::kNumSlots; ++k) {
      if (Slot(k) == nullptr) continue;
      const int64_t width = Rule::kSlotPerRow ? 1 : dim_;
      PrefetchRow(Slot(k) + row * width, width);
    }
  }

 private:
  static constexpr int kBlock = 16;
  static constexpr int kSlots = std::max(1, Rule::kNumSlots);

  S* Slot(int k) const { return static_cast<S*>(table_.slots[k]); }

  // Up to kBlock columns of a row, in float32; those beyond the row's end are zeros. A slot that
  // the table lacks is zeros too.
  struct Columns {
    const RowUpdater& updater;
    const int64_t row_index, begin;
    const int64_t count;
    float row[kBlock], gradient[kBlock], slots[kSlots][kBlock];

    Columns(const RowUpdater& u, int64_t r, int64_t column, const float* row_gradient)
        : updater(u),
          row_index(r),
          begin(column),
          count(std::min<int64_t>(kBlock, u.dim_ - begin)) {
      Load(u.RowAt(r, begin), row);
      Load(row_gradient + begin, gradient);
      for (int j = 0; j < kBlock; ++j) {
        // As if the gradient had been an IndexedSlices of the table's type.
        gradient[j] = PrepareGradient(u.hyper_, ToFloat(FromFloat<T>(gradient[j])));
        row[j] = DecayRow(u.hyper_, row[j]);
      }
      for (int k = 0; k < kSlots; ++k) {
        if (!Rule::kSlotPerRow && k < Rule::kNumSlots && u.Slot(k) != nullptr) {
          Load(u.Slot(k) + r * u.dim_ + begin, slots[k]);
        } else {
          std::fill(slots[k], slots[k] + kBlock, 0.0f);
        }
      }
    }

    void StoreRow() {
      if (updater.rounds_stochastically_) RoundRow();
      Store(row, updater.RowAt(row_index, begin));
    }

    void StoreSlots() const {
      for (int k = 0; k < Rule::kNumSlots; ++k) {
        S* slot = updater.Slot(k);
        if (slot != nullptr) Store(slots[k], slot + row_index * updater.dim_ + begin);
      }
    }

   private:
    template <typename From>
    void Load(const From* from, float* to) const {
      if (count == kBlock) {
        for (int j = 0; j < kBlock; j += 8) Store8(Load8(from + j), to + j);
        return;
      }
      for (int j = 0; j < kBlock; ++j) to[j] = j < count ? ToFloat(from[j]) : 0.0f;
    }

    template <typename To>
    void Store(const float* from, To* to) const {
      if (count == kBlock) {
        for (int j = 0; j < kBlock; j += 8) Store8(Load8(from + j), to + j);
        return;
      }
      for (int j = 0; j < count; ++j) to[j] = FromFloat<To>(from[j]);
    }

    void RoundRow() {
      for (int j = 0; j < count; ++j) {
        const uint32_t random = RandomBits(updater.key_, row_index, begin + j);
        if constexpr (std::is_same_v<T, Float16>) {
          row[j] = RoundToFloat16(row[j], random);
        } else if constexpr (std::is_same_v<T, BFloat16>) {
          row[j] = RoundToBFloat16(row[j], random);
        }
      }
    }
  };

  RowSums Sum(Columns* columns, RowSums sums) const {
    for (int j = 0; j < columns->count; ++j) {
      float slots[kSlots];
      for (int k = 0; k < kSlots; ++k) slots[k] = columns->slots[k][j];
      const RowSums one = Rule::Sum(hyper_, columns->gradient[j], columns->row[j], slots);
      for (int k = 0; k < kSlots; ++k) columns->slots[k][j] = slots[k];
      sums.a += one.a;
      sums.b += one.b;
    }
    return sums;
  }

  T* RowAt(int64_t row, int64_t column) const {
    return static_cast<T*>(table_.rows) + row * dim_ + column;
  }

  const Hyper hyper_;
  const TableUpdate table_;
  const int64_t dim_;
  const bool rounds_stochastically_;
  uint32_t key_;
};

// Calls `body(rule, row, slot)` with null pointers of the types of an update: slots are float32 or
// of the rows' own type.
template <typename Body>
void ForUpdate(RuleIndex rule, DataType dtype, DataType slot_dtype, Body&& body) {
  ForRule(rule, [&](auto chosen) {
    ForDataType(dtype, [&](auto* row) {
      if (slot_dtype == DataType::kFloat32) {
        body(chosen, row, static_cast<float*>(nullptr));
      } else {
        body(chosen, row, row);
      }
    });
  });
}

}  // namespace group_embedding
