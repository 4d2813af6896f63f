// How far each rank of a host has come, in memory that they share: who is late can be told by name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace group_embedding {

class ProgressBoard {
 public:
  // `name`: what only the ranks of one communicator know. Where the host shares no memory, the
  // board knows of this rank alone.
  static std::unique_ptr<ProgressBoard> Open(const std::string& name, int rank, int num_ranks);
  ~ProgressBoard();

  void Tell(int64_t num_calls);

  // A sentence: the ranks of this host that have made fewer calls than this.
  std::string WhoIsBehind(int64_t num_calls) const;

 private:
  ProgressBoard(int rank, int num_ranks) : rank_(rank), num_ranks_(num_ranks) {}

  const int rank_, num_ranks_;
  std::string path_;
  volatile int64_t* calls_ = nullptr;  // [num_ranks] 1 + calls; 0: not of this host, or not there
};

}  // namespace group_embedding
