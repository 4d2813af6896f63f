// A group on the host, for the tests that run it.
#pragma once

#include <random>
#include <vector>

#include "check.h"
#include "core/words.h"
#include "fused/group_lookup_grad.h"
#include "grouping/group_ids.h"

namespace group_embedding {

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
    std::vector<char> workspace(RowSorter::WorkspaceBytes(group));
    RowSorter sorter(group, workspace.data(), threads);
    SortRowsCpu(&sorter, threads);
    const std::vector<int64_t> num_unique = sorter.SumRows();
    std::vector<TableGrad> grads;
    grad_indices.assign(tables.size(), {}), grad_values.assign(tables.size(), {});
    for (size_t t = 0; t < tables.size(); ++t) {
      const int64_t count = num_unique[t + 1] - num_unique[t];
      grad_indices[t].resize(count), grad_values[t].resize(count * tables[t].dim);
      grads.push_back({grad_indices[t].data(), grad_values[t].data()});
    }
    ReduceRowsCpu(sorter, grads.data(), threads);  // the outputs serve as gradients
    weight_grad.assign(group.batch.num_ids, 0.0f);
    WeightGradCpu(group, weight_grad.data(), threads);
  }
};

inline std::vector<Shape> ManyShapes() {
  std::vector<Shape> shapes = {
      {50, 16, 300, 6, Combiner::kMean, 0},    {7, 1, 300, 3, Combiner::kSum, 0},
      {1000, 33, 100, 9, Combiner::kSqrtN, 1}, {3, 130, 40, 20, Combiner::kMean, 0.5f},
      {20, 8, 0, 3, Combiner::kSum, 0},        {20, 8, 50, 0, Combiner::kMean, 0},
      {5000, 3, 20000, 5, Combiner::kMean, 0}, {2, 4, 20000, 5, Combiner::kSum, 0}};
  for (const auto& word : CombinerWords()) shapes.push_back({50, 16, 300, 6, word.second, 0});
  return shapes;
}

}  // namespace group_embedding
