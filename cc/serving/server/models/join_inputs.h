// Inputs of several requests as those of one.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "serving/c_api/ge_serving.h"
#include "serving/server/protocol/signatures.h"

namespace group_embedding::server {

// What an input is of its tensor: all of it, or a part of a ragged or sparse one.
enum class Role { kDense, kFlatValues, kRowSplits, kIndices, kValues, kDenseShape, kUnknown };

// Positions are in the order of the signature's inputs, which is by name.
struct InputRole {
  Role role = Role::kDense;
  int level = 0;       // of row splits, the outermost is 0
  size_t rows_of = 0;  // of row splits: the position of what they split
  size_t indices = 0;  // of a sparse tensor's parts: the positions of the three
  size_t values = 0;
  size_t dense_shape = 0;
};

std::vector<InputRole> RolesOf(const Signature& signature);

// The inputs of one request that may be joined with others.
struct JoinableInputs {
  std::vector<const GeTensor*> tensors;  // in the order of the signature's inputs
  int64_t samples = 0;                   // first dim of each input, ragged and sparse ones too
  std::string layout;                    // dtypes and other dims: alike in what can be joined
};

// Null: the request is computed alone, because inputs are missing or unknown, have no samples or
// differ in their number, or because a ragged or sparse one is malformed: its rows might reach into
// those of another request.
std::optional<JoinableInputs> AsJoinable(const Signature& signature,
                                         const std::vector<InputRole>& roles,
                                         const std::vector<GeTensor>& inputs);

// One after the other along the first dim; row splits and indices move behind those in front.
class JoinedInputs {
 public:
  // The requests are of one layout; they are copied. samples: of all, at least their sum. What is
  // more repeats the last sample; of ragged and sparse inputs it is empty.
  JoinedInputs(const std::vector<InputRole>& roles,
               const std::vector<const JoinableInputs*>& requests, int64_t samples);

  const std::vector<GeTensor>& tensors() const { return tensors_; }

 private:
  using Requests = std::vector<const JoinableInputs*>;

  void AddRows(const Requests& requests, size_t position, int64_t repeats);
  template <typename T>
  void AddSplits(const Requests& requests, size_t position, int64_t repeats);
  void AddIndices(const Requests& requests, size_t position);
  // Adds a tensor as the first request has it, but for its first dim and its elements.
  void Add(const GeTensor& like, int64_t rows, const std::string& memory);

  std::vector<GeTensor> tensors_;
  std::deque<std::vector<int64_t>> dims_;
  std::deque<std::string> memory_;
};

}  // namespace group_embedding::server
