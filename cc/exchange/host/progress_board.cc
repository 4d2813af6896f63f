#include "exchange/host/progress_board.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>

namespace group_embedding {

std::unique_ptr<ProgressBoard> ProgressBoard::Open(const std::string& name, int rank,
                                                   int num_ranks) {
  std::unique_ptr<ProgressBoard> board(new ProgressBoard(rank, num_ranks));
  board->path_ = "/group_embedding_" + std::to_string(std::hash<std::string>()(name));
  const int file = shm_open(board->path_.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0) return board;
  const size_t bytes = num_ranks * sizeof(int64_t);
  if (ftruncate(file, bytes) == 0) {  // new words are zero
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (memory != MAP_FAILED) board->calls_ = static_cast<volatile int64_t*>(memory);
  }
  close(file);
  board->SetNumCalls(0);
  return board;
}

ProgressBoard::~ProgressBoard() {
  if (calls_ == nullptr) return;
  munmap(const_cast<int64_t*>(calls_), num_ranks_ * sizeof(int64_t));
  RemoveName();
}

void ProgressBoard::RemoveName() { shm_unlink(path_.c_str()); }

void ProgressBoard::SetNumCalls(int64_t num_calls) {
  if (calls_ != nullptr) calls_[rank_] = 1 + num_calls;
}

std::string ProgressBoard::WhoIsBehind(int64_t num_calls) const {
  std::string behind, elsewhere;
  for (int n = 0; n < num_ranks_; ++n) {
    const int64_t calls = calls_ == nullptr ? 0 : calls_[n];
    if (n == rank_ || calls > num_calls) continue;
    std::string& list = calls == 0 ? elsewhere : behind;
    list += (list.empty() ? "" : ", ") + std::to_string(n);
  }
  if (!behind.empty()) return "waited for rank " + behind + ", which hangs or is gone";
  if (!elsewhere.empty()) return "no rank of this host is behind; of others: " + elsewhere;
  return "no rank is behind: a GPU or a link does not move";
}

}  // namespace group_embedding
