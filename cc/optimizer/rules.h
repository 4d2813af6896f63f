// The update rules: a rule computes a row of a table, and its slots, from the row's gradient.
//
// One small struct per rule, for the host and the device, in float32. A rule works on one column at
// a time, or on eight (V is float or Float8):
//   kName, kNumSlots
//   kRowSlot              the slot that is one number per row, [num_rows, 1], not one per column;
//                         -1: none
//   Update(h, f, g, x, s) the new x (column of the row) and s (that column of each slot)
//   Factor(h)             the `f` that Update gets in this step
// A rule whose update of a column needs the whole row (kNeedsRow) has instead of Factor(h):
//   Sum(h, g, x, s)       changes slots, and returns the number to add up over the columns
//   Factor(h, sums, dim, s)  computes the `f` of Update from the sums; changes *s, the slot per row
// A slot that a table does not have reads as zero, and writes to it are dropped: RMSprop without
// momentum needs no slot for it, and Adam without AMSGrad no maximum of v.
// A NaN in a gradient or a slot reaches the row: every comparison below is false for NaN, so each
// is written such that its "false" keeps NaN. An infinity is not multiplied by a 0 that only stands
// for "no".
#pragma once

#include <cstdint>

#include "core/float8.h"
#include "optimizer/average_rules.h"
#include "optimizer/hyper.h"

namespace group_embedding {

inline constexpr int kMaxSlots = 3;

// x <- x - lr g
struct Sgd : ColumnwiseRule {
  static constexpr char kName[] = "sgd";
  static constexpr int kNumSlots = 0;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper&, float rate, V g, V& x, V*) {
    x -= rate * g;
  }
};

// TensorFlow 1's Momentum: the learning rate stays outside the accumulator.
//   s <- momentum s + g;  x <- x - lr s, or with Nesterov x - lr (g + momentum s)
struct Momentum : ColumnwiseRule {
  static constexpr char kName[] = "momentum";
  static constexpr int kNumSlots = 1;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float rate, V g, V& x, V* s) {
    s[0] = h.momentum * s[0] + g;
    x -= rate * (h.nesterov != 0 ? g + h.momentum * s[0] : s[0]);
  }
};

// Keras's SGD with momentum: the learning rate goes into the velocity.
//   s <- momentum s - lr g;  x <- x + s, or with Nesterov x + momentum s - lr g
struct KerasMomentum : ColumnwiseRule {
  static constexpr char kName[] = "keras_momentum";
  static constexpr int kNumSlots = 1;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float rate, V g, V& x, V* s) {
    s[0] = h.momentum * s[0] - rate * g;
    x += h.nesterov != 0 ? h.momentum * s[0] - rate * g : s[0];
  }
};

// Duchi, Hazan, Singer 2011.  s <- s + g^2;  x <- x - lr g / (sqrt(s + eps') + eps)
struct Adagrad : ColumnwiseRule {
  static constexpr char kName[] = "adagrad";
  static constexpr int kNumSlots = 1;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float rate, V g, V& x, V* s) {
    s[0] += g * g;
    x -= rate * g / (SquareRoot(s[0] + h.epsilon_in_root) + h.epsilon);
  }
};

// Adagrad whose accumulator forgets, as DeepRec's AdagradDecay; slots: accumulator, number of its
// decays. A row that missed several decays makes up for one in each step that trains it.
//   where n < decays_due:  s <- max(rate s, floor);  n <- n + 1
//   then:  s <- s + g^2;  x <- x - lr g / sqrt(s)
struct AdagradDecay : ColumnwiseRule {
  static constexpr char kName[] = "adagrad_decay";
  static constexpr int kNumSlots = 2;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float rate, V g, V& x, V* s) {
    const V shrunk = h.accumulator_decay_rate * s[0], floor = V{} + h.accumulator_floor;
    const V decayed = Larger(shrunk, floor);
    const V num_decays = s[1];
    s[0] = Select(num_decays < h.decays_due, decayed, s[0]) + g * g;
    s[1] = Select(num_decays < h.decays_due, num_decays + 1, num_decays);
    x -= rate * g / SquareRoot(s[0]);
  }
};

// Adagrad with one accumulator per row, of the mean of g^2 (as in FBGEMM and torchrec).
struct RowwiseAdagrad {
  static constexpr char kName[] = "rowwise_adagrad";
  static constexpr int kNumSlots = 1;
  static constexpr bool kNeedsRow = true;
  static constexpr int kRowSlot = 0;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static RowSumsOf<V> Sum(const Hyper&, V g, V, V*) {
    return {g * g, V{}};
  }
  GROUP_EMBEDDING_HOST_DEVICE static float Factor(const Hyper& h, RowSums sums, int64_t dim,
                                                  float* s) {
    s[0] += sums.a / static_cast<float>(dim);
    return h.learning_rate / (SquareRoot(s[0] + h.epsilon_in_root) + h.epsilon);
  }
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper&, float factor, V g, V& x, V*) {
    x -= factor * g;
  }
};

// Kingma, Ba 2015, in the form of its section 2 (epsilon beside the uncorrected root), for the rows
// that were looked up alone. With a third slot AMSGrad (Reddi, Kale, Kumar 2018).
//   m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  w <- max(w, v)
//   x <- x - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(w) + eps)
struct Adam : ColumnwiseRule {
  static constexpr char kName[] = "adam";
  static constexpr int kNumSlots = 3;
  GROUP_EMBEDDING_HOST_DEVICE static float Factor(const Hyper& h) {
    return h.learning_rate * SquareRoot(1 - h.beta_2_power) / (1 - h.beta_1_power);
  }
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float rate, V g, V& x, V* s) {
    s[0] = h.beta_1 * s[0] + (1 - h.beta_1) * g;
    s[1] = h.beta_2 * s[1] + (1 - h.beta_2) * g * g;
    s[2] = Larger(s[2], s[1]);
    x -= rate * s[0] / (SquareRoot(s[2]) + h.epsilon);
  }
};

// Adam whose second moment is one number per row, of the mean of g^2 (as FBGEMM's partial row-wise
// Adam).
//   m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) mean(g^2)
//   x <- x - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)
struct RowwiseAdam {
  static constexpr char kName[] = "rowwise_adam";
  static constexpr int kNumSlots = 2;
  static constexpr bool kNeedsRow = true;
  static constexpr int kRowSlot = 1;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static RowSumsOf<V> Sum(const Hyper& h, V g, V, V* s) {
    s[0] = h.beta_1 * s[0] + (1 - h.beta_1) * g;
    return {g * g, V{}};
  }
  GROUP_EMBEDDING_HOST_DEVICE static float Factor(const Hyper& h, RowSums sums, int64_t dim,
                                                  float* v) {
    *v = h.beta_2 * *v + (1 - h.beta_2) * (sums.a / static_cast<float>(dim));
    return Adam::Factor(h) / (SquareRoot(*v) + h.epsilon);
  }
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper&, float factor, V, V& x, V* s) {
    x -= factor * s[0];
  }
};

// Loshchilov, Hutter 2019: Adam, before which the row shrinks by l2 of itself, whatever the
// learning rate is.  x <- x - l2 x, then Adam
struct AdamW : Adam {
  static constexpr char kName[] = "adamw";
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float rate, V g, V& x, V* s) {
    x -= h.l2 * x;
    Adam::Update(h, rate, g, x, s);
  }
};

// Kingma, Ba 2015, section 7.1, for the rows that were looked up alone.
//   m <- b1 m + (1 - b1) g;  u <- max(b2 u, |g|);  x <- x - lr / (1 - b1^t) m / (u + eps)
struct Adamax : ColumnwiseRule {
  static constexpr char kName[] = "adamax";
  static constexpr int kNumSlots = 2;
  GROUP_EMBEDDING_HOST_DEVICE static float Factor(const Hyper& h) {
    return h.learning_rate / (1 - h.beta_1_power);
  }
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float rate, V g, V& x, V* s) {
    s[0] = h.beta_1 * s[0] + (1 - h.beta_1) * g;
    s[1] = Larger(Magnitude(g), h.beta_2 * s[1]);
    x -= rate * s[0] / (s[1] + h.epsilon);
  }
};

// Zeiler 2012, as in TensorFlow's SparseApplyAdadelta; slots: the mean of g^2, that of d^2.
//   v <- rho v + (1 - rho) g^2;  d = sqrt(a + eps') / sqrt(v + eps') g
//   a <- rho a + (1 - rho) d^2;  x <- x - lr d
struct Adadelta : ColumnwiseRule {
  static constexpr char kName[] = "adadelta";
  static constexpr int kNumSlots = 2;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float rate, V g, V& x, V* s) {
    s[0] = h.rho * s[0] + (1 - h.rho) * g * g;
    const V d = SquareRoot(s[1] + h.epsilon_in_root) / SquareRoot(s[0] + h.epsilon_in_root) * g;
    s[1] = h.rho * s[1] + (1 - h.rho) * d * d;
    x -= rate * d;
  }
};

// McMahan et al. 2013, as in TensorFlow's SparseApplyFtrlV2: slots are accumulator and linear.
template <typename V>
GROUP_EMBEDDING_HOST_DEVICE V FtrlRoot(const Hyper& h, V accumulator) {
  if (h.learning_rate_power == -0.5f) return SquareRoot(accumulator);
  return Power(accumulator, -h.learning_rate_power);
}
template <typename V>
GROUP_EMBEDDING_HOST_DEVICE void MoveFtrlSlots(const Hyper& h, V g, V x, V* s) {
  const V accumulator = s[0] + g * g;
  const V shrunk = g + 2 * h.l2_shrinkage * x;
  s[1] += shrunk - (FtrlRoot(h, accumulator) - FtrlRoot(h, s[0])) / h.learning_rate * x;
  s[0] = accumulator;
}
template <typename V>
GROUP_EMBEDDING_HOST_DEVICE V FtrlQuadratic(const Hyper& h, V accumulator) {
  return FtrlRoot(h, accumulator) / h.learning_rate + 2 * h.l2;
}
struct Ftrl : ColumnwiseRule {
  static constexpr char kName[] = "ftrl";
  static constexpr int kNumSlots = 2;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float, V g, V& x, V* s) {
    MoveFtrlSlots(h, g, x, s);
    const V sparse = s[1] - Select(s[1] < 0, V{} - h.l1, V{} + h.l1);
    x = Select(Magnitude(s[1]) <= h.l1, V{}, -sparse / FtrlQuadratic(h, s[0]));
  }
};

// Ftrl with a group lasso (Ni et al. 2019), as DeepRec trains tables: l1 is that of the norm of
// `linear` over a row, so that a row vanishes as a whole.
//   x <- -max(0, 1 - l1 / |linear|) linear / quadratic
struct GroupFtrl {
  static constexpr char kName[] = "group_ftrl";
  static constexpr int kNumSlots = 2;
  static constexpr bool kNeedsRow = true;
  static constexpr int kRowSlot = kNoRowSlot;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static RowSumsOf<V> Sum(const Hyper& h, V g, V x, V* s) {
    MoveFtrlSlots(h, g, x, s);
    return {s[1] * s[1], V{}};
  }
  GROUP_EMBEDDING_HOST_DEVICE static float Factor(const Hyper& h, RowSums sums, int64_t, float*) {
    const float norm = SquareRoot(sums.a);
    return norm <= h.l1 ? 0.0f : 1 - h.l1 / norm;
  }
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float factor, V, V& x, V* s) {
    x = -factor * s[1] / FtrlQuadratic(h, s[0]);
  }
};

// Tieleman, Hinton 2012, as in TensorFlow's SparseApplyRMSProp; slots: the mean of g^2, momentum,
// the mean of g (centered).
//   v <- rho v + (1 - rho) g^2;  a <- rho a + (1 - rho) g
//   m <- momentum m + lr g / (sqrt(v - a^2 + eps') + eps);  x <- x - m
struct RmsProp : ColumnwiseRule {
  static constexpr char kName[] = "rmsprop";
  static constexpr int kNumSlots = 3;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float rate, V g, V& x, V* s) {
    s[0] += (1 - h.rho) * (g * g - s[0]);
    s[2] += (1 - h.rho) * (g - s[2]);
    const V variance = s[0] - h.centered * s[2] * s[2];
    s[1] = h.momentum * s[1] + rate * g / (SquareRoot(variance + h.epsilon_in_root) + h.epsilon);
    x -= s[1];
  }
};

// You et al. 2020, with a trust ratio per row, as each row is a layer of its own; l2 is its weight
// decay.
//   r = m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps) + l2 x;  x <- x - lr |x| / |r| r
struct Lamb {
  static constexpr char kName[] = "lamb";
  static constexpr int kNumSlots = 2;
  static constexpr bool kNeedsRow = true;
  static constexpr int kRowSlot = kNoRowSlot;
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static V Direction(const Hyper& h, V x, const V* s) {
    const V root = SquareRoot(s[1] / (1 - h.beta_2_power));
    return s[0] / (1 - h.beta_1_power) / (root + h.epsilon) + h.l2 * x;
  }
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static RowSumsOf<V> Sum(const Hyper& h, V g, V x, V* s) {
    s[0] = h.beta_1 * s[0] + (1 - h.beta_1) * g;
    s[1] = h.beta_2 * s[1] + (1 - h.beta_2) * g * g;
    const V r = Direction(h, x, s);
    return {x * x, r * r};
  }
  GROUP_EMBEDDING_HOST_DEVICE static float Factor(const Hyper& h, RowSums sums, int64_t, float*) {
    const bool both = sums.a > 0 && sums.b > 0;
    return h.learning_rate * (both ? SquareRoot(sums.a / sums.b) : 1.0f);
  }
  template <typename V>
  GROUP_EMBEDDING_HOST_DEVICE static void Update(const Hyper& h, float factor, V, V& x, V* s) {
    x -= factor * Direction(h, x, s);
  }
};

// Every rule, once.
template <typename... Rules>
struct RuleList {};
using AllRules = RuleList<Sgd, Momentum, KerasMomentum, Adagrad, RowwiseAdagrad, Adam, Ftrl,
                          RmsProp, Lamb, AdagradDecay, AdamW, Adamax, Adadelta, CatchUpAverage,
                          MoveAverage, GroupFtrl, RowwiseAdam>;

// The place of a rule in AllRules.
using RuleIndex = int32_t;

// Calls `body(Rule{})` for the rule at `index`; false if there is none.
template <typename Body, typename... Rules>
GROUP_EMBEDDING_HOST_DEVICE bool ForRule(RuleIndex index, Body&& body, RuleList<Rules...>) {
  RuleIndex at = 0;
  return ((at++ == index ? (body(Rules{}), true) : false) || ...);
}
template <typename Body>
GROUP_EMBEDDING_HOST_DEVICE bool ForRule(RuleIndex index, Body&& body) {
  return ForRule(index, static_cast<Body&&>(body), AllRules{});
}

// What all rules have in common, before they see a column: the row shrinks, the gradient is scaled
// and limited.
template <typename V>
GROUP_EMBEDDING_HOST_DEVICE V PrepareGradient(const Hyper& h, V g) {
  const V high = V{} + h.clip_value, low = V{} - h.clip_value;
  g *= h.gradient_scale;
  g = Select(g > high, high, g);  // NaN stays NaN
  return Select(g < low, low, g);
}
template <typename V>
GROUP_EMBEDDING_HOST_DEVICE V DecayRow(const Hyper& h, V x) {
  return x - h.learning_rate * h.weight_decay * x;
}

}  // namespace group_embedding
