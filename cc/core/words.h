// The words of combiners, dtypes and spreads, as ops and the core's Python module are given them:
// one parser each. An unknown word is an error of the caller, in the words of UnknownWord.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/group.h"
#include "core/owner.h"

namespace group_embedding {

template <typename T>
using Words = std::vector<std::pair<std::string, T>>;

inline const Words<Combiner>& CombinerWords() {
  static const Words<Combiner> words = {{"sum", Combiner::kSum},
                                        {"mean", Combiner::kMean},
                                        {"sqrtn", Combiner::kSqrtN},
                                        {"signed_mean", Combiner::kSignedMean},
                                        {"signed_sqrtn", Combiner::kSignedSqrtN}};
  return words;
}

inline const Words<DataType>& DataTypeWords() {
  static const Words<DataType> words = {{"float32", DataType::kFloat32},
                                        {"float16", DataType::kFloat16},
                                        {"bfloat16", DataType::kBFloat16}};
  return words;
}

inline const Words<PlacementKind>& PlacementWords() {
  static const Words<PlacementKind> words = {{"mod", PlacementKind::kMod},
                                             {"hash", PlacementKind::kHash},
                                             {"one_rank", PlacementKind::kOneRank},
                                             {"columns", PlacementKind::kColumns}};
  return words;
}

template <typename T>
std::optional<T> Parse(const Words<T>& words, const std::string& word) {
  for (const auto& [known, value] : words) {
    if (known == word) return value;
  }
  return std::nullopt;
}

// The error of an unknown word: "combiners: expected sum, mean or sqrtn, got 'max'".
template <typename T>
std::string UnknownWord(const std::string& name, const Words<T>& words, const std::string& word) {
  std::string text = name + ": expected ";
  for (size_t w = 0; w < words.size(); ++w) {
    if (w > 0) text += w + 1 == words.size() ? " or " : ", ";
    text += words[w].first;
  }
  return text + ", got '" + word + "'";
}

}  // namespace group_embedding
