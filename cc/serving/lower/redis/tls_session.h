// TlsSession: the bytes of one TLS connection, encrypted and decrypted in memory; the owner of the
// socket sends and receives them. OpenSSL is loaded by dlopen when the first session is made.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/status.h"
#include "serving/lower/redis/redis_options.h"

namespace group_embedding {

class TlsSession {
 public:
  virtual ~TlsSession() = default;

  // One step of the handshake, after bytes have arrived. `done`: no more are needed.
  virtual Status Shake(bool* done) = 0;
  // Takes bytes that were received from the server.
  virtual Status TakeEncrypted(const char* bytes, size_t count) = 0;
  // Moves what is to be sent to the server to the end of `bytes`.
  virtual void MoveEncrypted(std::vector<char>* bytes) = 0;
  // After the handshake.
  virtual Status Write(const char* bytes, size_t count) = 0;
  // Returns how many bytes were read; 0: more have to arrive, or, with `ended`, none will.
  virtual size_t Read(char* bytes, size_t most, bool* ended, Status* error) = 0;
};

// Null: OpenSSL or a file cannot be loaded. `host`: that the server's certificate has to name.
std::unique_ptr<TlsSession> MakeTlsSession(const RedisOptions& options, const std::string& host,
                                           Status* error);

}  // namespace group_embedding
