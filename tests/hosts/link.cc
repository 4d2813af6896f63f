// The network between hosts that are network namespaces: a user-space relay of IP packets, each
// pair of hosts with a delay, a rate and a loss of its own, and cut or not. It does what netem
// does, which many kernels are built without.
//
//   link PID...       the processes whose network namespaces are joined, host 0 first
//
// Each host gets the TUN device `eth0`; the caller gives host i the address 10.77.0.(i + 1)/24.
// A line of stdin sets the way from one host to another:
//
//   FROM TO DELAY_MS MBIT_PER_SECOND LOSS_PERCENT IS_UP       a rate of 0 is unlimited
//
// It, and the start, are answered by "ok". The line "count" is answered by what was sent since the
// last one: PACKETS BYTES CROSSINGS. CROSSINGS is the length of the longest chain of TCP packets
// with data, each of which left a host after the one before it had arrived there: with a delay
// longer than the time for which a host sends at once, how often a job waits for the link. The
// relay ends with its stdin.

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

struct Packet {
  std::vector<char> bytes;
  int64_t crossings;  // of the longest chain that ends with it
};

constexpr size_t kMaxQueued = 8 << 20;  // bytes on their way from one host to another
constexpr int kMaxBurst = 64;     // packets read from a host before the others have their turn
constexpr int kDestination = 16;  // offset of the destination's address in an IPv4 header
constexpr int kProtocol = 9;
constexpr int kTcp = 6;

[[noreturn]] void Fail(const std::string& what) {
  perror(what.c_str());
  exit(1);
}

Clock::duration Seconds(double seconds) {
  return std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

// Makes `eth0` in the network namespace of a process. Returns the file from which the packets that
// the host sends are read, and to which those that it receives are written.
int MakeDevice(const std::string& pid) {
  const std::string path = "/proc/" + pid + "/ns/net";
  const int network = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (network < 0 || setns(network, CLONE_NEWNET) != 0) Fail(path);
  close(network);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (device < 0) Fail("/dev/net/tun");
  ifreq request = {};
  strcpy(request.ifr_name, "eth0");
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(device, TUNSETIFF, &request) != 0) Fail("TUNSETIFF");
  return device;
}

// Returns whether an IPv4 packet is of TCP and has data.
bool HasData(const std::vector<char>& packet) {
  const auto byte = [&](size_t at) { return static_cast<uint8_t>(packet[at]); };
  const size_t ip_header = (byte(0) & 15) * 4;
  if (byte(kProtocol) != kTcp || packet.size() < ip_header + 20) return false;
  return packet.size() > ip_header + (byte(ip_header + 12) >> 4) * 4;
}

// The packets on their way from one host to another.
class Direction {
 public:
  void Set(double delay, double bytes_per_second, double loss, bool is_up) {
    delay_ = delay, bytes_per_second_ = bytes_per_second, loss_ = loss, is_up_ = is_up;
    if (!is_up_) queue_.clear(), queued_ = 0;
  }

  void Send(Packet packet, Clock::time_point now) {
    const bool is_lost = std::uniform_real_distribution<>(0, 1)(random_) < loss_;
    const size_t size = packet.bytes.size();
    if (!is_up_ || is_lost || queued_ + size > kMaxQueued) return;
    queued_ += size;
    free_at_ = std::max(free_at_, now);
    if (bytes_per_second_ > 0) free_at_ += Seconds(size / bytes_per_second_);
    queue_.emplace_back(free_at_ + Seconds(delay_), std::move(packet));
  }

  // Begins all chains anew.
  void ForgetCrossings() {
    for (auto& [arrival, packet] : queue_) packet.crossings = 0;
  }

  // Hands the packets that have arrived to the host. Returns when the next one does.
  // crossings: those of the host, which grow to those of the packets.
  Clock::time_point Deliver(int device, Clock::time_point now, int64_t* crossings) {
    while (!queue_.empty() && queue_.front().first <= now) {
      const auto& [bytes, chain] = queue_.front().second;
      // A host that takes no more loses it, as a full network card does.
      [[maybe_unused]] const ssize_t written = write(device, bytes.data(), bytes.size());
      *crossings = std::max(*crossings, chain);
      queued_ -= bytes.size();
      queue_.pop_front();
    }
    return queue_.empty() ? Clock::time_point::max() : queue_.front().first;
  }

 private:
  double delay_ = 0, bytes_per_second_ = 0, loss_ = 0;
  bool is_up_ = true;
  Clock::time_point free_at_;  // when the sender has sent all that it was given
  std::deque<std::pair<Clock::time_point, Packet>> queue_;
  size_t queued_ = 0;
  std::minstd_rand random_;  // the same losses on every run
};

class Network {
 public:
  explicit Network(std::vector<int> devices)
      : devices_(std::move(devices)),
        directions_(devices_.size() * devices_.size()),
        crossings_(devices_.size()) {}

  void Run() {
    for (;;) {
      Wait(DeliverAll());
      if (files_[0].revents != 0 && !ReadCommands()) return;
      for (size_t host = 0; host < devices_.size(); host++) {
        if (files_[host + 1].revents != 0) ReadPackets(host);
      }
    }
  }

 private:
  Direction& Between(size_t from, size_t to) { return directions_[from * devices_.size() + to]; }

  Clock::time_point DeliverAll() {
    const Clock::time_point now = Clock::now();
    Clock::time_point next = Clock::time_point::max();
    for (size_t i = 0; i < directions_.size(); i++) {
      const size_t to = i % devices_.size();
      next = std::min(next, directions_[i].Deliver(devices_[to], now, &crossings_[to]));
    }
    return next;
  }

  // Waits for a command, a packet, or until a moment.
  void Wait(Clock::time_point until) {
    files_ = {{STDIN_FILENO, POLLIN, 0}};
    for (int device : devices_) files_.push_back({device, POLLIN, 0});
    const bool is_idle = until == Clock::time_point::max();
    const int64_t nanoseconds = is_idle ? 0 : std::max<int64_t>(0, (until - Clock::now()).count());
    const timespec wait = {nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
    ppoll(files_.data(), files_.size(), is_idle ? nullptr : &wait, nullptr);
  }

  void ReadPackets(size_t from) {
    const Clock::time_point now = Clock::now();
    for (int i = 0; i < kMaxBurst; i++) {
      const ssize_t size = read(devices_[from], buffer_, sizeof buffer_);
      if (size <= 0) return;
      const bool is_ipv4 = size >= 20 && (buffer_[0] >> 4 & 15) == 4;
      if (!is_ipv4) continue;
      const size_t to = static_cast<uint8_t>(buffer_[kDestination + 3]) - 1;
      if (to >= devices_.size()) continue;
      packets_++, bytes_ += size;
      Packet packet = {std::vector<char>(buffer_, buffer_ + size), 0};
      if (HasData(packet.bytes)) packet.crossings = crossings_[from] + 1;
      Between(from, to).Send(std::move(packet), now);
    }
  }

  // Returns false when stdin has ended.
  bool ReadCommands() {
    const ssize_t size = read(STDIN_FILENO, buffer_, sizeof buffer_);
    if (size <= 0) return false;
    commands_.append(buffer_, size);
    for (size_t end; (end = commands_.find('\n')) != std::string::npos;) {
      Execute(commands_.substr(0, end));
      commands_.erase(0, end + 1);
    }
    return true;
  }

  void Execute(const std::string& command) {
    if (command == "count") return Count();
    size_t from, to;
    double delay, rate, loss;
    int is_up;
    const int read =
        sscanf(command.c_str(), "%zu %zu %lf %lf %lf %d", &from, &to, &delay, &rate, &loss, &is_up);
    if (read != 6 || std::max(from, to) >= devices_.size()) {
      fprintf(stderr, "expected FROM TO DELAY_MS MBIT LOSS_PERCENT IS_UP, got '%s'\n",
              command.c_str());
      exit(1);
    }
    Between(from, to).Set(delay / 1e3, rate * 1e6 / 8, loss / 100, is_up);
    puts("ok");
    fflush(stdout);
  }

  void Count() {
    const int64_t longest = *std::max_element(crossings_.begin(), crossings_.end());
    printf("%ld %ld %ld\n", long{packets_}, long{bytes_}, long{longest});
    fflush(stdout);
    packets_ = bytes_ = 0;
    std::fill(crossings_.begin(), crossings_.end(), 0);
    for (Direction& direction : directions_) direction.ForgetCrossings();
  }

  std::vector<int> devices_;
  std::vector<Direction> directions_;  // [from][to]
  std::vector<pollfd> files_;          // stdin, then the devices
  std::string commands_;               // the received bytes of the next ones
  // Since the last count.
  int64_t packets_ = 0, bytes_ = 0;
  std::vector<int64_t> crossings_;  // of the longest chain of packets that each host received
  char buffer_[1 << 16];
};

}  // namespace

int main(int num_arguments, char** arguments) {
  std::vector<int> devices;
  for (int i = 1; i < num_arguments; i++) devices.push_back(MakeDevice(arguments[i]));
  puts("ok");
  fflush(stdout);
  Network(std::move(devices)).Run();
}
