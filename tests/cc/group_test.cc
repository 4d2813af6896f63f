// The whole CPU path, from indices to row gradients, for the sanitizers to watch: on one thread and
// on several, which must give the same bits.
#include <cstring>
#include <random>

#include "check.h"
#include "fused/group_lookup_grad.h"
#include "grouping/group_ids.h"
#include "threads.h"

namespace group_embedding {
namespace {

struct Shape {
  int64_t num_rows;
  int32_t dim;
  int64_t num_samples, max_ids;
  Combiner combiner;
  float max_norm;
};

// A group with a feature per shape, ids that include pruned ones, and what its passes write.
struct Case {
  std::vector<Shape> shapes;
  std::vector<std::vector<float>> rows, outputs, weights;
  std::vector<std::vector<int64_t>> ids, indices;
  std::vector<FeatureIds> inputs;
  std::vector<float> buffer;
  std::vector<Table> tables;
  std::vector<Feature> features;
  std::vector<std::vector<int64_t>> grad_indices;
  std::vector<std::vector<float>> grad_values;
  std::vector<float> weight_grad;

  Case(const std::vector<Shape>& given, uint32_t seed) : shapes(given) {
    std::mt19937 random(seed);
    const size_t count = shapes.size();
    rows.resize(count), outputs.resize(count), weights.resize(count);
    ids.resize(count), indices.resize(count), inputs.resize(count);
    for (size_t f = 0; f < count; ++f) {
      const Shape& shape = shapes[f];
      for (int64_t i = 0; i < shape.num_rows * shape.dim; ++i) {
        rows[f].push_back(static_cast<float>(random() % 1000) / 500.0f - 1.0f);
      }
      for (int64_t s = 0; s < shape.num_samples; ++s) {
        const int64_t length = random() % (shape.max_ids + 1);
        for (int64_t i = 0; i < length; ++i) {
          ids[f].push_back(static_cast<int64_t>(random() % (shape.num_rows + 1)) - 1);
          weights[f].push_back(static_cast<float>(random() % 9) / 4.0f - 0.25f);
          indices[f].insert(indices[f].end(), {s, i});
        }
      }
      outputs[f].assign(shape.num_samples * shape.dim, -7.0f);
      FeatureIds& input = inputs[f];
      input = {};
      input.values = ids[f].data();
      input.partition = indices[f].data();
      input.weights = weights[f].data();
      input.num_ids = static_cast<int64_t>(ids[f].size());
      input.num_samples = shape.num_samples;
      input.sample_shape[0] = shape.num_samples;
      input.sample_strides[0] = 1;
      input.rank = 2;
      input.id_type = IdType::kInt64;
      input.layout = Layout::kSparse;
    }
  }

  Group Prepare(const ParallelFor& threads) {
    int64_t num_samples = 0, num_ids = 0;
    tables.clear(), features.clear();
    for (size_t f = 0; f < shapes.size(); ++f) {
      tables.push_back({rows[f].data(), shapes[f].num_rows, shapes[f].dim, shapes[f].max_norm});
      features.push_back({num_samples, shapes[f].num_samples, outputs[f].data(), shapes[f].dim,
                          static_cast<int32_t>(f), shapes[f].combiner});
      num_samples += shapes[f].num_samples;
      num_ids += inputs[f].num_ids;
    }
    buffer.assign(LayOutBatch(num_samples, num_ids, true).size, 0.0f);
    const Fault fault = GroupIdsCpu(inputs.data(), static_cast<int64_t>(inputs.size()), true,
                                    buffer.data(), threads);
    CHECK_TRUE(fault.kind == FaultKind::kNone);
    return {tables.data(),
            static_cast<int64_t>(tables.size()),
            features.data(),
            static_cast<int64_t>(features.size()),
            ViewBatch(buffer.data(), num_samples, num_ids, true),
            DataType::kFloat32,
            {}};
  }

  void Run(const ParallelFor& threads) {
    const Group group = Prepare(threads);
    CHECK_TRUE(GroupLookupCpu(group, threads).kind == FaultKind::kNone);
    std::vector<char> workspace(SortRowsWorkspaceBytes(group));
    const SortedRows sorted = SortRowsCpu(group, workspace.data(), threads);
    std::vector<TableGrad> grads;
    grad_indices.assign(tables.size(), {}), grad_values.assign(tables.size(), {});
    for (size_t t = 0; t < tables.size(); ++t) {
      const int64_t count = sorted.num_unique[t + 1] - sorted.num_unique[t];
      grad_indices[t].resize(count), grad_values[t].resize(count * tables[t].dim);
      grads.push_back({grad_indices[t].data(), grad_values[t].data()});
    }
    ReduceRowsCpu(group, sorted, grads.data(), threads);  // the outputs serve as gradients
    weight_grad.assign(group.batch.num_ids, 0.0f);
    WeightGradCpu(group, weight_grad.data(), threads);
  }
};

std::vector<Shape> ManyShapes() {
  return {{50, 16, 300, 6, Combiner::kMean, 0},    {7, 1, 300, 3, Combiner::kSum, 0},
          {1000, 33, 100, 9, Combiner::kSqrtN, 1}, {3, 130, 40, 20, Combiner::kMean, 0.5f},
          {20, 8, 0, 3, Combiner::kSum, 0},        {20, 8, 50, 0, Combiner::kMean, 0}};
}

TEST(ThreadsChangeNoBit) {
  // Given the same group twice
  Case one(ManyShapes(), 5), many(ManyShapes(), 5);
  // When it runs on one thread, and on five
  one.Run(SerialFor);
  many.Run(testing::ThreadedFor(5));
  // Then every output and gradient has the same bits
  for (size_t f = 0; f < one.shapes.size(); ++f) {
    CHECK_TRUE(one.outputs[f] == many.outputs[f]);
    CHECK_TRUE(one.grad_indices[f] == many.grad_indices[f]);
    CHECK_TRUE(one.grad_values[f] == many.grad_values[f]);
  }
  CHECK_TRUE(one.weight_grad == many.weight_grad);
}

TEST(LargeTableIsSplitAmongThreads) {
  // Given so many ids of one table that its sorting is shared
  const std::vector<Shape> shape = {{100000, 2, 60000, 8, Combiner::kSum, 0}};
  Case one(shape, 9), many(shape, 9);
  // When it runs on one thread, and on four
  one.Run(SerialFor);
  many.Run(testing::ThreadedFor(4));
  // Then the rows ascend, and all is the same
  const std::vector<int64_t>& rows = one.grad_indices[0];
  for (size_t u = 1; u < rows.size(); ++u) CHECK_TRUE(rows[u - 1] < rows[u]);
  CHECK_TRUE(one.grad_indices == many.grad_indices);
  CHECK_TRUE(one.grad_values == many.grad_values);
}

TEST(BadIdIsTheFirstOneOnAnyNumberOfThreads) {
  // Given bad ids in two features
  Case bad(ManyShapes(), 5);
  bad.ids[2][10] = 1000;
  bad.ids[3][1] = int64_t{1} << 62;
  bad.weights[2][10] = bad.weights[3][1] = 1.0f;
  for (const int64_t threads : {1, 4}) {
    // When they are looked up
    const Group group = bad.Prepare(testing::ThreadedFor(threads));
    const Fault fault = GroupLookupCpu(group, testing::ThreadedFor(threads));
    // Then the earlier feature's is reported
    CHECK_TRUE(fault.kind == FaultKind::kIdOutOfRange);
    CHECK_EQ(fault.feature, 2);
    CHECK_EQ(fault.value, int64_t{1000});
  }
}

TEST(RowsOutOfOrderOrOutsideTheBatchAreFaults) {
  for (const int64_t row : {int64_t{-1}, int64_t{300}, int64_t{1} << 40}) {
    Case bad(ManyShapes(), 5);
    bad.indices[0][20] = row;
    std::vector<float> buffer(100000);
    const Fault fault = GroupIdsCpu(bad.inputs.data(), static_cast<int64_t>(bad.inputs.size()),
                                    true, buffer.data(), testing::ThreadedFor(3));
    CHECK_TRUE(fault.kind == FaultKind::kRowOutOfBatch);
  }
  Case unsorted(ManyShapes(), 5);
  unsorted.indices[0][20] = 299;
  std::vector<float> buffer(100000);
  const Fault fault = GroupIdsCpu(unsorted.inputs.data(), 1, true, buffer.data(), SerialFor);
  CHECK_TRUE(fault.kind == FaultKind::kRowsUnsorted);
}

}  // namespace
}  // namespace group_embedding
