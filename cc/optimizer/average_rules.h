// The rules that keep moving averages of rows: see rules.h for what a rule is.
#pragma once

#include "core/float8.h"
#include "optimizer/hyper.h"

namespace group_embedding {

// Steps are counted modulo this, so that float32 has each number.
inline constexpr float kStepCycle = 1 << 24;

// The moving average, at step `now`, of a column that is `x` since step `n`, when the average was
// `a`. Without an average, n < 0, it is the column itself.
template <typename V>
GROUP_EMBEDDING_HOST_DEVICE V AverageAt(float momentum, float now, V x, V a, V n) {
  const V steps = now - n;
  const V decay = Power(momentum, Select(steps < 0, steps + kStepCycle, steps));
  return Select(n < 0, x, Select(steps == 0, a, x + decay * (a - x)));
}

// Keras's use_ema, as two rules around that of a step. In every step the average of a row moves
// towards the row; those of rows that a step does not look up are made up for when they are next
// looked up. Slots: the average, and the step that it is of, -1: there is none yet.
//   before the step's rule:  a <- x + momentum^(step - 1 - n) (a - x);  n <- step - 1
struct CatchUpAverage : ColumnwiseRule {
  static constexpr char kName[] = "catch_up_average";
  static constexpr int kNumSlots = 2;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float, V, V& x, V* s) {
    const float before = h.step > 0 ? h.step - 1 : kStepCycle - 1;
    s[0] = AverageAt(h.momentum, before, x, s[0], s[1]);
    s[1] = V{} + before;
  }
};
//   behind it:  a <- momentum a + (1 - momentum) x;  n <- step
struct MoveAverage : ColumnwiseRule {
  static constexpr char kName[] = "move_average";
  static constexpr int kNumSlots = 2;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float, V, V& x, V* s) {
    s[0] = h.momentum * s[0] + (1 - h.momentum) * x;
    s[1] = V{} + h.step;
  }
};

}  // namespace group_embedding
