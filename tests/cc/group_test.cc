// The whole CPU path, from indices to row gradients, for the sanitizers to watch: on one thread and
// on several, which must give the same bits.
#include "check.h"
#include "group_case.h"
#include "threads.h"

namespace group_embedding {
namespace {

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

std::vector<float> BufferFor(const Case& group) {
  int64_t num_samples = 0, num_ids = 0;
  for (const FeatureIds& input : group.inputs) {
    num_samples += input.num_samples;
    num_ids += input.num_ids;
  }
  return std::vector<float>(LayOutBatch(num_samples, num_ids, true).size);
}

TEST(RowsOutOfOrderOrOutsideTheBatchAreFaults) {
  for (const int64_t row : {int64_t{-1}, int64_t{300}, int64_t{1} << 40}) {
    Case bad(ManyShapes(), 5);
    bad.indices[0][20] = row;
    std::vector<float> buffer = BufferFor(bad);
    const Fault fault = GroupIdsCpu(bad.inputs.data(), static_cast<int64_t>(bad.inputs.size()),
                                    true, buffer.data(), testing::ThreadedFor(3));
    CHECK_TRUE(fault.kind == FaultKind::kRowOutOfBatch);
  }
  Case unsorted(ManyShapes(), 5);
  unsorted.indices[0][20] = 299;
  std::vector<float> buffer = BufferFor(unsorted);
  const Fault fault = GroupIdsCpu(unsorted.inputs.data(), 1, true, buffer.data(), SerialFor);
  CHECK_TRUE(fault.kind == FaultKind::kRowsUnsorted);
}

}  // namespace
}  // namespace group_embedding
