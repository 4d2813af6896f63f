// Bytes of a connection of gRPC: what is buffered is counted, and given back at the end.
#include "inference/grpc_service.pb.h"
#include "parts.h"
#include "serving/server/protocol/grpc_message.h"
#include "serving/server/protocol/grpc_session.h"

using namespace group_embedding::server;

namespace {

constexpr size_t kMostMessageBytes = 10'000;
constexpr char kPreface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

Status Echo(const Request&, std::string_view message, std::string* answer) {
  EXPECT(message.size() <= kMostMessageBytes);
  answer->assign(kGrpcFrameBytes, '\0');
  *answer += message;
  WriteGrpcLength(answer);
  return Status::OK;
}

void FillService(GrpcService* service) {
  const auto* type = inference::ModelInferRequest::descriptor();
  service->methods["/a/Compute"] = {GrpcMethod::kComputed, type, Echo};
  service->methods["/a/Now"] = {GrpcMethod::kAtOnce, type, Echo};
  service->methods["/a/Watch"] = {GrpcMethod::kWatched, type, Echo};
  service->most_message_bytes = kMostMessageBytes;
  service->most_buffered_bytes = 4 * kMostMessageBytes;
}

}  // namespace

// A byte says whether what is computed is answered now; the rest comes in parts.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Parts parts(data, size);
  GrpcService service;
  FillService(&service);
  {
    std::vector<GrpcCall> calls;
    GrpcSession session(service, [&](GrpcCall call) {
      calls.push_back(std::move(call));
      return calls.size() < 5;
    });
    bool goes_on = (parts.Byte() & 1) != 0 || session.Receive({kPreface, sizeof(kPreface) - 1});
    std::string bytes;
    while (goes_on && !parts.empty()) {
      const uint8_t what = parts.Byte();
      goes_on = session.Receive(parts.Next());
      EXPECT(service.buffered_bytes <= service.most_buffered_bytes);
      goes_on = session.Send(&bytes, 1 << 16) && goes_on;
      bytes.clear();
      if ((what & 1) != 0) {
        for (GrpcCall& call : calls) {
          session.Answer(call.stream, AnswerGrpcCall(call, kMostMessageBytes));
        }
        calls.clear();
      }
      if ((what & 2) != 0) goes_on = session.Tick() && goes_on;
      if ((what & 4) != 0) session.Drain();
      if ((what & 8) != 0) session.LookAtWatches();
    }
    session.Send(&bytes, 1 << 16);
  }
  EXPECT(service.buffered_bytes == 0);
  return 0;
}
