// What all update rules (rules.h) read and share.
#pragma once

#include <cstdint>

#include "core/host_device.h"

namespace group_embedding {

// The numbers that steer an update; the same for all tables of a call. Each rule reads those it
// knows, and UpdateColumn the first ones, which are common. All are float32, so that they are one
// vector, made where the learning rate is.
struct Hyper {
  float apply;           // 0: nothing is changed
  float gradient_scale;  // the gradient is multiplied by it, then
  float clip_value;      // each of its columns limited to [-clip_value, clip_value]
  float weight_decay;    // the row shrinks by learning_rate * weight_decay of itself, before
  float rounding_key;    // its bits are the key of this step's random numbers: see rounding.h
  float learning_rate;
  float momentum;
  float nesterov;  // 0 or 1
  float rho;
  float centered;  // 0 or 1
  float beta_1, beta_2;
  float beta_1_power, beta_2_power;  // beta^t at step t = 1, 2, ...
  float epsilon;                     // added to a root
  float epsilon_in_root;             // added below a root
  float l1, l2, l2_shrinkage, learning_rate_power;
  float accumulator_decay_rate;  // a decay multiplies the accumulator by it
  float accumulator_floor;       // which no decay takes an accumulator below
  float decays_due;              // how often a row that no step left out has decayed
  float step;                    // 1, 2, ... modulo kStepCycle
};

// The names of its fields, in order.
inline constexpr const char* kHyperNames[] = {"apply",
                                              "gradient_scale",
                                              "clip_value",
                                              "weight_decay",
                                              "rounding_key",
                                              "learning_rate",
                                              "momentum",
                                              "nesterov",
                                              "rho",
                                              "centered",
                                              "beta_1",
                                              "beta_2",
                                              "beta_1_power",
                                              "beta_2_power",
                                              "epsilon",
                                              "epsilon_in_root",
                                              "l1",
                                              "l2",
                                              "l2_shrinkage",
                                              "learning_rate_power",
                                              "accumulator_decay_rate",
                                              "accumulator_floor",
                                              "decays_due",
                                              "step"};
inline constexpr int kNumHyper = sizeof(kHyperNames) / sizeof(kHyperNames[0]);
static_assert(sizeof(Hyper) == kNumHyper * sizeof(float));

// Two sums over the columns of a row.
template <typename V>
struct RowSumsOf {
  V a{}, b{};
};
using RowSums = RowSumsOf<float>;

// A rule without a slot that is one number per row.
inline constexpr int kNoRowSlot = -1;

struct ColumnwiseRule {
  static constexpr bool kNeedsRow = false;
  static constexpr int kRowSlot = kNoRowSlot;
  GROUP_EMBEDDING_HOST_DEVICE static float Factor(const Hyper& h) { return h.learning_rate; }
};

}  // namespace group_embedding
