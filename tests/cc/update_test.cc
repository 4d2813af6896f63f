// The update fused into the backward pass, for every rule, beside the same rule applied to the
// gradients of ReduceRows.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>
#include <numeric>

#include "check.h"
#include "fused/group_update.h"
#include "group_case.h"
#include "threads.h"

// All that `new` has given out, in bytes. (Not inlined, or GCC warns of a `free` without `malloc`.)
static std::atomic<int64_t> g_bytes{0};

__attribute__((noinline)) void* operator new(size_t bytes) {
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  g_bytes += static_cast<int64_t>(bytes);
  return memory;
}
__attribute__((noinline)) void operator delete(void* memory) noexcept { std::free(memory); }
__attribute__((noinline)) void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace group_embedding {
namespace {

Hyper SomeHyper() {
  Hyper hyper = {};
  hyper.apply = 1, hyper.gradient_scale = 0.5f, hyper.clip_value = 3, hyper.weight_decay = 0.01f;
  hyper.learning_rate = 0.1f, hyper.momentum = 0.9f, hyper.nesterov = 1, hyper.rho = 0.9f;
  hyper.beta_1 = 0.9f, hyper.beta_2 = 0.99f, hyper.beta_1_power = 0.81f;
  hyper.beta_2_power = 0.98f, hyper.epsilon = 1e-3f, hyper.epsilon_in_root = 1e-3f;
  hyper.l1 = 0.01f, hyper.l2 = 0.02f, hyper.learning_rate_power = -0.5f;
  hyper.accumulator_decay_rate = 0.8f, hyper.accumulator_floor = 0.2f, hyper.decays_due = 2;
  return hyper;
}

// A group's tables with their slots, before and after updates by one rule.
struct Tables {
  const Hyper hyper = SomeHyper();
  std::vector<std::vector<float>> rows;
  std::vector<std::vector<float>> slots;  // kMaxSlots for each table, as large as the rows

  explicit Tables(const Case& group) : rows(group.rows) {
    for (const std::vector<float>& table : rows) {
      slots.insert(slots.end(), kMaxSlots, std::vector<float>(table.size(), 0.1f));
    }
  }

  bool operator==(const Tables& other) const { return rows == other.rows && slots == other.slots; }

  void Apply(RuleIndex rule, Group group, const ParallelFor& threads) {
    std::vector<TableUpdate> updates(rows.size());
    std::vector<Table> tables(group.tables, group.tables + group.num_tables);
    for (size_t t = 0; t < rows.size(); ++t) {
      tables[t].rows = rows[t].data();
      updates[t].rows = rows[t].data();
      for (int k = 0; k < kMaxSlots; ++k) updates[t].slots[k] = slots[kMaxSlots * t + k].data();
    }
    group.tables = tables.data();
    std::vector<char> workspace(GroupUpdateWorkspaceBytes(group));
    const Update update = {rule, &hyper, updates.data(), DataType::kFloat32, false};
    GroupUpdateCpu(group, update, workspace.data(), threads);
  }
};

// The gradients that `computed` holds, as a group of one id per sample.
struct Slices {
  std::vector<int64_t> ids;
  std::vector<Table> tables;
  std::vector<Feature> features;
  Group group;

  explicit Slices(Case* computed) : tables(computed->tables) {
    for (size_t t = 0; t < tables.size(); ++t) {
      const std::vector<int64_t>& indices = computed->grad_indices[t];
      features.push_back({static_cast<int64_t>(ids.size()), static_cast<int64_t>(indices.size()),
                          computed->grad_values[t].data(), tables[t].dim, static_cast<int32_t>(t),
                          Combiner::kSum});
      ids.insert(ids.end(), indices.begin(), indices.end());
      tables[t].max_norm = 0;  // the gradients are those of the rows themselves
    }
    const int64_t num_ids = static_cast<int64_t>(ids.size());
    const int64_t num_tables = static_cast<int64_t>(tables.size());
    group = {tables.data(),
             num_tables,
             features.data(),
             num_tables,
             {nullptr, ids.data(), nullptr, num_ids, num_ids},
             DataType::kFloat32,
             {}};
  }
};

TEST(FusedUpdateIsTheRuleOnGradients) {
  // Given a group, and its gradients by the two steps of the backward pass
  Case computed(ManyShapes(), 3);
  computed.Run(SerialFor);
  Slices slices(&computed);
  bool is_rule = true;
  for (RuleIndex rule = 0; is_rule; ++rule) {
    is_rule = ForRule(rule, [](auto) {});
    Tables fused(computed), threaded(computed), from_slices(computed);
    const Tables before(computed);
    if (!is_rule) break;
    // When the rule is applied three ways
    const Group group = computed.Prepare(SerialFor);
    fused.Apply(rule, group, SerialFor);
    threaded.Apply(rule, group, testing::ThreadedFor(5));
    from_slices.Apply(rule, slices.group, SerialFor);
    // Then rows and slots have moved, to the same bits
    CHECK_TRUE(!(fused == before));
    CHECK_TRUE(fused == threaded);
    CHECK_TRUE(fused == from_slices);
  }
}

TEST(WhatHasNoGradientStays) {
  // Given a group of which one feature has no gradient, and another's table is not to be updated
  Case computed(ManyShapes(), 4);
  computed.Run(SerialFor);
  Group group = computed.Prepare(SerialFor);
  computed.features[0].output = nullptr;
  computed.tables[2].num_rows = 0;
  const Tables before(computed);
  Tables after(computed);
  // When it is updated
  after.Apply(/*rule=*/0, group, SerialFor);
  // Then both tables are as before, and another is not
  CHECK_TRUE(after.rows[0] == before.rows[0]);
  CHECK_TRUE(after.rows[2] == before.rows[2]);
  CHECK_TRUE(after.rows[1] != before.rows[1]);
}

// A table whose ids all lie in its first rows, one per sample, with weights and a divisor.
struct Crowded {
  static constexpr int64_t kIds = 1 << 18, kRows = 1 << 20;
  std::vector<float> rows = std::vector<float>(kRows, 1.0f);
  std::vector<float> gradients = std::vector<float>(kIds);
  std::vector<float> weights = std::vector<float>(kIds, 0.5f);
  std::vector<int64_t> ids = std::vector<int64_t>(kIds);
  Table table = {rows.data(), kRows, 1, 0};
  Feature feature = {0, kIds, gradients.data(), 1, 0, Combiner::kMean};

  Crowded() {
    std::mt19937 random(5);
    for (int64_t i = 0; i < kIds; ++i) {
      ids[i] = i % 3 == 0 ? 7 : random() % (kRows / 256);
      gradients[i] = static_cast<float>(random() % 1000) / 500.0f - 1.0f;
    }
  }
  Group group() {
    return {&table,
            1,
            &feature,
            1,
            {nullptr, ids.data(), weights.data(), kIds, kIds},
            DataType::kFloat32,
            {}};
  }
};

TEST(MemoryIsSixteenBytesPerId) {
  // Given many ids in one run
  Crowded crowded;
  std::vector<float> expected = crowded.rows;
  std::vector<float> sums(Crowded::kRows, 0.0f);
  const Hyper hyper = SomeHyper();
  for (int64_t i = 0; i < Crowded::kIds; ++i) sums[crowded.ids[i]] += crowded.gradients[i];
  // When the rows are updated
  const TableUpdate table = {crowded.rows.data(), {}};
  const Update update = {/*rule=*/0, &hyper, &table, DataType::kFloat32, false};
  const int64_t before = g_bytes;
  {
    std::vector<char> workspace(GroupUpdateWorkspaceBytes(crowded.group()));
    GroupUpdateCpu(crowded.group(), update, workspace.data(), SerialFor);
  }
  // Then the memory taken meanwhile is 16 bytes per id, and a little for the thread
  CHECK_TRUE(g_bytes - before <= 16 * Crowded::kIds + (1 << 20));
  // And entries were added in their order, to the last bit
  for (int64_t row = 0; row < Crowded::kRows / 256; ++row) {
    const float gradient = std::clamp(0.5f * sums[row], -3.0f, 3.0f);
    const float x = expected[row] - 0.1f * 0.01f * expected[row];
    CHECK_EQ(crowded.rows[row], sums[row] == 0 ? crowded.rows[row] : x - 0.1f * gradient);
  }
}

TEST(RowAndPlaceShareAnEntry) {
  Crowded crowded;
  CHECK_EQ(RowSorter::MaxRows(crowded.group()), (int64_t{1} << (64 - 18)) - 1);
}

}  // namespace
}  // namespace group_embedding
