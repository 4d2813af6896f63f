// A client that loads a gRPC server, from one thread: HTTP/2 by libnghttp2, requests as bytes.
//
//   serving_load --port P --requests FILE --answers FILE --seconds S --connections C
//        (--in-flight N | --rate R [--even])
//
// requests: serialized PredictRequests, each behind its length as uint32; sent one after the other,
// around and around. --in-flight: N requests are always on their way. --rate: R requests a second
// come at times that do not depend on answers, by chance (Poisson) or, with --even, evenly; the
// time of an answer counts from when its request should have been sent.
// answers: per answer four doubles: when the request was due and when its answer was complete, in
// seconds of CLOCK_MONOTONIC; gRPC's status; the version in model_spec, or -1.
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <nghttp2/nghttp2.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr int kNoStatus = 99;           // the stream ended without one
constexpr double kSecondsToEnd = 10.0;  // for answers after the last request

double Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

[[noreturn]] void Fail(const std::string& what) {
  std::fprintf(stderr, "serving_load: %s\n", what.c_str());
  std::exit(1);
}

struct Answer {
  double due, done, status, version;
};

// The value of a varint field, or the bytes of a field, of a protobuf message.
struct Message {
  const uint8_t *at, *end;

  uint64_t Varint() {
    uint64_t value = 0;
    for (int shift = 0; at < end && shift < 64; shift += 7) {
      value |= static_cast<uint64_t>(*at & 127) << shift;
      if (*at++ < 128) break;
    }
    return value;
  }
  // Finds the next field `number`; its bytes, or the empty message if there is none.
  Message Field(uint64_t number) {
    while (at < end) {
      const uint64_t tag = Varint();
      if (tag % 8 != 2) return {end, end};
      const uint64_t size = Varint();
      if (size > static_cast<uint64_t>(end - at)) return {end, end};
      const Message field = {at, at + size};
      at += size;
      if (tag / 8 == number) return field;
    }
    return {end, end};
  }
};

// PredictResponse.model_spec.version.value; -1 if there is none.
double VersionOf(const std::string& body) {
  if (body.size() < 5) return -1;
  const auto* bytes = reinterpret_cast<const uint8_t*>(body.data());
  Message answer = {bytes + 5, bytes + body.size()};
  Message version = answer.Field(2).Field(2);
  if (version.at == version.end) return -1;
  version.Varint();
  return static_cast<double>(version.Varint());
}

struct Options {
  int port = 0, in_flight = 0, connections = 1;
  double rate = 0, seconds = 1;
  bool even = false;
  std::string requests, answers;
};

struct Load {
  std::vector<std::string> requests;  // with gRPC's five bytes in front
  std::vector<Answer> answers;
  size_t next = 0;
  int running = 0;
};

class Connection {
 public:
  Connection(int port, Load* load) : load_(load) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socket_ = ::socket(AF_INET, SOCK_STREAM, 0);
    if (connect(socket_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) {
      Fail("cannot connect to 127.0.0.1:" + std::to_string(port));
    }
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    fcntl(socket_, F_SETFL, O_NONBLOCK);
    nghttp2_session_callbacks* callbacks = nullptr;
    nghttp2_session_callbacks_new(&callbacks);
    nghttp2_session_callbacks_set_on_header_callback(callbacks, &OnHeader);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(callbacks, &OnData);
    nghttp2_session_callbacks_set_on_stream_close_callback(callbacks, &OnClose);
    nghttp2_session_client_new(&session_, callbacks, this);
    nghttp2_session_callbacks_del(callbacks);
    const nghttp2_settings_entry window = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 30};
    nghttp2_submit_settings(session_, NGHTTP2_FLAG_NONE, &window, 1);
    nghttp2_session_set_local_window_size(session_, NGHTTP2_FLAG_NONE, 0, 1 << 30);
  }
  ~Connection() {
    nghttp2_session_del(session_);
    close(socket_);
  }

  int socket() const { return socket_; }
  bool has_output() const { return sent_ < output_.size() || nghttp2_session_want_write(session_); }

  // Sends the next request, which was due at `due`.
  void Send(double due) {
    const std::string& request = load_->requests[load_->next++ % load_->requests.size()];
    auto stream = std::make_unique<Stream>();
    stream->due = due;
    stream->request = &request;
    nghttp2_data_provider provider = {};
    provider.source.ptr = stream.get();
    provider.read_callback = &ReadRequest;
    const nghttp2_nv headers[] = {
        Header(":method", "POST"),
        Header(":scheme", "http"),
        Header(":path", "/tensorflow.serving.PredictionService/Predict"),
        Header(":authority", "localhost"),
        Header("content-type", "application/grpc"),
        Header("te", "trailers"),
    };
    const int id = nghttp2_submit_request(session_, nullptr, headers, std::size(headers), &provider,
                                          stream.get());
    if (id < 0) Fail(std::string("no stream: ") + nghttp2_strerror(id));
    streams_[id] = std::move(stream);
    ++load_->running;
  }

  void Write() {
    for (;;) {
      if (sent_ == output_.size()) {
        output_.clear();
        sent_ = 0;
        const uint8_t* data = nullptr;
        for (ssize_t size; output_.size() < 65536; output_.append(Text(data), size)) {
          size = nghttp2_session_mem_send(session_, &data);
          if (size < 0) Fail("HTTP/2 has an error");
          if (size == 0) break;
        }
        if (output_.empty()) return;
      }
      const ssize_t written = write(socket_, output_.data() + sent_, output_.size() - sent_);
      if (written < 0 && errno != EAGAIN) Fail("the server has closed the connection");
      if (written < 0) return;
      sent_ += written;
    }
  }

  void Read() {
    uint8_t buffer[65536];
    for (;;) {
      const ssize_t size = read(socket_, buffer, sizeof(buffer));
      if (size < 0 && errno == EAGAIN) return;
      if (size <= 0 || nghttp2_session_mem_recv(session_, buffer, size) < 0) {
        Fail("the server has closed the connection");
      }
      if (size < static_cast<ssize_t>(sizeof(buffer))) return;
    }
  }

 private:
  struct Stream {
    double due;
    const std::string* request;
    size_t sent = 0;
    int status = kNoStatus;
    std::string body;
  };

  static const char* Text(const uint8_t* data) { return reinterpret_cast<const char*>(data); }
  static nghttp2_nv Header(const char* name, const char* value) {
    auto bytes = [](const char* text) {
      return const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(text));
    };
    return {bytes(name), bytes(value), std::strlen(name), std::strlen(value),
            NGHTTP2_NV_FLAG_NO_COPY_NAME | NGHTTP2_NV_FLAG_NO_COPY_VALUE};
  }
  static Stream* StreamOf(nghttp2_session* session, int32_t id) {
    return static_cast<Stream*>(nghttp2_session_get_stream_user_data(session, id));
  }

  static ssize_t ReadRequest(nghttp2_session*, int32_t, uint8_t* to, size_t size, uint32_t* flags,
                             nghttp2_data_source* source, void*) {
    auto* stream = static_cast<Stream*>(source->ptr);
    size = std::min(size, stream->request->size() - stream->sent);
    std::memcpy(to, stream->request->data() + stream->sent, size);
    stream->sent += size;
    if (stream->sent == stream->request->size()) *flags |= NGHTTP2_DATA_FLAG_EOF;
    return static_cast<ssize_t>(size);
  }
  static int OnHeader(nghttp2_session* session, const nghttp2_frame* frame, const uint8_t* name,
                      size_t name_size, const uint8_t* value, size_t value_size, uint8_t, void*) {
    Stream* stream = StreamOf(session, frame->hd.stream_id);
    if (stream != nullptr && std::string(Text(name), name_size) == "grpc-status") {
      stream->status = std::atoi(std::string(Text(value), value_size).c_str());
    }
    return 0;
  }
  static int OnData(nghttp2_session* session, uint8_t, int32_t id, const uint8_t* data, size_t size,
                    void*) {
    if (Stream* stream = StreamOf(session, id)) stream->body.append(Text(data), size);
    return 0;
  }
  static int OnClose(nghttp2_session* session, int32_t id, uint32_t, void* self) {
    auto* connection = static_cast<Connection*>(self);
    const Stream* stream = StreamOf(session, id);
    if (stream == nullptr) return 0;
    connection->load_->answers.push_back(
        {stream->due, Now(), static_cast<double>(stream->status), VersionOf(stream->body)});
    --connection->load_->running;
    connection->streams_.erase(id);
    return 0;
  }

  Load* const load_;
  int socket_ = -1;
  nghttp2_session* session_ = nullptr;
  std::map<int32_t, std::unique_ptr<Stream>> streams_;
  std::string output_;
  size_t sent_ = 0;  // of output_
};

std::vector<std::string> ReadRequests(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<std::string> requests;
  uint32_t size = 0;
  while (file.read(reinterpret_cast<char*>(&size), sizeof(size))) {
    std::string request(5 + size, '\0');  // not compressed, then the length, the highest byte first
    for (int i = 0; i < 4; ++i) request[1 + i] = static_cast<char>(size >> (24 - 8 * i));
    if (!file.read(request.data() + 5, size)) Fail("'" + path + "' is cut off");
    requests.push_back(std::move(request));
  }
  if (requests.empty()) Fail("'" + path + "' has no requests");
  return requests;
}

// Waits until a connection can go on, or until `when`.
void Wait(const std::vector<std::unique_ptr<Connection>>& connections, double when) {
  std::vector<pollfd> sockets;
  for (const auto& one : connections) {
    const short events = one->has_output() ? POLLIN | POLLOUT : POLLIN;
    sockets.push_back({one->socket(), events, 0});
  }
  const double seconds = std::max(0.0, when - Now());
  timespec most = {static_cast<time_t>(seconds), 0};
  most.tv_nsec = static_cast<long>(1e9 * (seconds - static_cast<double>(most.tv_sec)));
  ppoll(sockets.data(), sockets.size(), &most, nullptr);
  for (size_t i = 0; i < sockets.size(); ++i) {
    if (sockets[i].revents & POLLIN) connections[i]->Read();
  }
}

void Run(const Options& options, Load* load) {
  std::vector<std::unique_ptr<Connection>> connections;
  for (int i = 0; i < options.connections; ++i) {
    connections.push_back(std::make_unique<Connection>(options.port, load));
  }
  std::mt19937_64 random(1);
  std::exponential_distribution<double> gap(options.rate > 0 ? options.rate : 1.0);
  size_t turn = 0;
  auto send = [&](double due) { connections[turn++ % connections.size()]->Send(due); };
  const double begin = Now(), end = begin + options.seconds;
  double due = options.rate > 0 ? begin : end;
  for (double now = begin; now < end || load->running > 0; now = Now()) {
    if (now > end + kSecondsToEnd) Fail(std::to_string(load->running) + " requests got no answer");
    while (now < end && load->running < options.in_flight) send(now);
    for (; options.rate > 0 && due <= now && due < end;
         due += options.even ? 1 / options.rate : gap(random)) {
      send(due);
    }
    for (const auto& one : connections) one->Write();
    const bool sends_later = options.rate > 0 && due < end;
    Wait(connections, sends_later ? due : now + 0.1);
  }
}

Options Parse(int argc, char** argv) {
  Options options;
  std::map<std::string, std::string> given;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--even") {
      options.even = true;
    } else if (++i < argc) {
      given[name] = argv[i];
    }
  }
  options.port = std::atoi(given["--port"].c_str());
  options.in_flight = std::atoi(given["--in-flight"].c_str());
  options.connections = std::max(1, std::atoi(given["--connections"].c_str()));
  options.rate = std::atof(given["--rate"].c_str());
  options.seconds = std::atof(given["--seconds"].c_str());
  options.requests = given["--requests"];
  options.answers = given["--answers"];
  if ((options.in_flight > 0) == (options.rate > 0)) Fail("expected --in-flight or --rate");
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = Parse(argc, argv);
  prctl(PR_SET_TIMERSLACK, 1000UL);  // ns: requests are sent when they are due
  Load load;
  load.requests = ReadRequests(options.requests);
  load.answers.reserve(1 << 20);
  Run(options, &load);
  std::ofstream file(options.answers, std::ios::binary);
  file.write(reinterpret_cast<const char*>(load.answers.data()),
             static_cast<std::streamsize>(load.answers.size() * sizeof(Answer)));
  return file.good() ? 0 : 1;
}
