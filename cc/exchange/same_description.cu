#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "exchange/messages.h"
#include "exchange/same_description.h"

namespace group_embedding {
namespace {

// What each rank sends to all.
struct Header {
  uint64_t digest;
  int64_t bytes;
};

// Sends `content` to every rank, and brings what the others sent to the host.
class Gather {
 public:
  Gather(Communicator* communicator, const std::function<void*(int64_t)>& on_device, Stream stream)
      : communicator_(communicator), on_device_(on_device), stream_(stream) {}

  // bytes_of_rank: of what each sends. received: [their sum].
  std::string Run(const std::string& content, const std::vector<int64_t>& bytes_of_rank,
                  std::string* received) {
    const int num_ranks = communicator_->num_ranks();
    int64_t num_received = 0;
    for (const int64_t bytes : bytes_of_rank) num_received += bytes;
    std::string sent;
    for (int n = 0; n < num_ranks; ++n) sent += content;
    const std::vector<int64_t> send_bytes(num_ranks, static_cast<int64_t>(content.size()));
    char* send = static_cast<char*>(on_device_(static_cast<int64_t>(sent.size()) + num_received));
    char* receive = send + sent.size();
    received->resize(num_received);
    cudaError_t copied =
        cudaMemcpyAsync(send, sent.data(), sent.size(), cudaMemcpyHostToDevice, stream_);
    if (copied != cudaSuccess) return cudaGetErrorString(copied);
    const std::string error =
        communicator_->AllToAll(send, send_bytes.data(), receive, bytes_of_rank.data(), stream_);
    if (!error.empty()) return error;
    copied =
        cudaMemcpyAsync(received->data(), receive, num_received, cudaMemcpyDeviceToHost, stream_);
    if (copied != cudaSuccess) return cudaGetErrorString(copied);
    return communicator_->Wait(stream_);
  }

 private:
  Communicator* const communicator_;
  const std::function<void*(int64_t)>& on_device_;
  const Stream stream_;
};

}  // namespace

std::string CheckSameDescription(Communicator* communicator, const std::string& description,
                                 const std::function<void*(int64_t bytes)>& on_device,
                                 Stream stream) {
  const int num_ranks = communicator->num_ranks();
  Gather gather(communicator, on_device, stream);
  const Header mine = {DigestOf(description), static_cast<int64_t>(description.size())};
  std::string received;
  std::string error = gather.Run(std::string(reinterpret_cast<const char*>(&mine), sizeof(mine)),
                                 std::vector<int64_t>(num_ranks, sizeof(Header)), &received);
  if (!error.empty()) return error;
  std::vector<Header> headers(num_ranks);
  std::copy_n(received.data(), received.size(), reinterpret_cast<char*>(headers.data()));
  // Every rank sees the same headers, so that all go on, or none does.
  if (std::all_of(headers.begin(), headers.end(),
                  [&](const Header& header) { return header.digest == headers[0].digest; })) {
    return "";
  }
  std::vector<int64_t> bytes;
  for (const Header& header : headers) bytes.push_back(header.bytes);
  error = gather.Run(description, bytes, &received);
  size_t at = 0;
  for (int n = 0; n < num_ranks && error.empty(); at += bytes[n++]) {
    if (headers[n].digest == mine.digest) continue;
    error = DifferenceOf(description, received.substr(at, bytes[n]), n);
  }
  return error;
}

}  // namespace group_embedding
