#include "exchange/transport/communicator.h"

#include <vector>

namespace group_embedding {

void Communicator::CountSent(const std::vector<int64_t>& bytes) {
  for (int n = 0; n < num_ranks_; ++n) {
    if (n != rank_) sent_bytes_[n].fetch_add(bytes[n], std::memory_order_relaxed);
  }
}

std::vector<int64_t> Communicator::SentBytes() const {
  std::vector<int64_t> sent;
  for (const std::atomic<int64_t>& bytes : sent_bytes_) {
    sent.push_back(bytes.load(std::memory_order_relaxed));
  }
  return sent;
}

Status ExchangeEqual(Communicator* communicator, const void* send, void* receive, int64_t bytes,
                     Stream stream) {
  const std::vector<int64_t> sizes(communicator->num_ranks(), bytes);
  return communicator->AllToAll(send, sizes.data(), receive, sizes.data(), stream);
}

}  // namespace group_embedding
