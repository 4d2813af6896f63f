// RedisOptions: which Redis, and how it is reached, from what a user wrote.
#pragma once

#include <string>
#include <vector>

#include "core/status.h"

namespace group_embedding {

struct RedisAddress {
  std::string host, port;

  std::string text() const;  // HOST:PORT, or [HOST]:PORT of IPv6
  bool operator<(const RedisAddress& other) const {
    return host != other.host ? host < other.host : port < other.port;
  }
  bool operator==(const RedisAddress& other) const {
    return host == other.host && port == other.port;
  }
};

struct RedisOptions {
  std::vector<RedisAddress> addresses;  // nodes of one cluster, or one server and its successors
  std::string user, password;           // empty: none
  int database = 0;
  bool tls = false;
  std::string ca_file;              // empty: the authorities of the system
  std::string cert_file, key_file;  // of this client; empty: none
  bool check_hostname = true;

  std::string text() const;  // for messages: the addresses, without a password
};

// Reads an address, with the port 6379 where it has none. False: it is none.
bool ReadRedisAddress(const std::string& text, RedisAddress* address);

// Reads "HOST:PORT[,HOST:PORT...]" or a URL as those of redis-py,
// "redis://[USER:PASSWORD@]HOST:PORT[,HOST:PORT...][/DATABASE][?OPTION=VALUE&...]", where rediss is
// TLS. The sentence of an error has no password.
Status ReadRedisOptions(const std::string& text, RedisOptions* options);

}  // namespace group_embedding
