// ProgressBoard: the number of calls that each rank of a host has made, in shared memory, so that
// an error can name the late ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace group_embedding {

class ProgressBoard {
 public:
  // name: unique to the ranks of one communicator. If the host has no shared memory, the board
  // knows this rank only.
  static std::unique_ptr<ProgressBoard> Open(const std::string& name, int rank, int num_ranks);
  ~ProgressBoard();

  // Once all ranks have opened the board: they keep it, and none leaves it behind, however its
  // process ends.
  void RemoveName();

  void SetNumCalls(int64_t num_calls);

  // A sentence that names the ranks of this host that have made fewer calls than `num_calls`.
  std::string WhoIsBehind(int64_t num_calls) const;

 private:
  ProgressBoard(int rank, int num_ranks) : rank_(rank), num_ranks_(num_ranks) {}

  const int rank_, num_ranks_;
  std::string path_;
  volatile int64_t* calls_ = nullptr;  // [num_ranks] 1 + calls; 0: on another host, or not started
};

}  // namespace group_embedding
