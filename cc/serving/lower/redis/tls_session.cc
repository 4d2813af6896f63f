#include "serving/lower/redis/tls_session.h"

#include <arpa/inet.h>
#include <dlfcn.h>

#include <mutex>

namespace group_embedding {
namespace {

// OpenSSL's functions of these names, from version 1.1.1 on. Objects are opaque.
struct OpenSsl {
  const void* (*TLS_client_method)();
  void* (*SSL_CTX_new)(const void*);
  void (*SSL_CTX_free)(void*);
  void (*SSL_CTX_set_verify)(void*, int, void*);
  int (*SSL_CTX_set_default_verify_paths)(void*);
  int (*SSL_CTX_load_verify_locations)(void*, const char*, const char*);
  int (*SSL_CTX_use_certificate_chain_file)(void*, const char*);
  int (*SSL_CTX_use_PrivateKey_file)(void*, const char*, int);
  long (*SSL_CTX_ctrl)(void*, int, long, void*);
  void* (*SSL_new)(void*);
  void (*SSL_free)(void*);
  void (*SSL_set_bio)(void*, void*, void*);
  void (*SSL_set_connect_state)(void*);
  int (*SSL_do_handshake)(void*);
  int (*SSL_read)(void*, void*, int);
  int (*SSL_write)(void*, const void*, int);
  int (*SSL_get_error)(const void*, int);
  long (*SSL_ctrl)(void*, int, long, void*);
  long (*SSL_get_verify_result)(const void*);
  void* (*SSL_get0_param)(void*);
  int (*X509_VERIFY_PARAM_set1_host)(void*, const char*, size_t);
  int (*X509_VERIFY_PARAM_set1_ip_asc)(void*, const char*);
  const char* (*X509_verify_cert_error_string)(long);
  void* (*BIO_new)(const void*);
  const void* (*BIO_s_mem)();
  int (*BIO_read)(void*, void*, int);
  int (*BIO_write)(void*, const void*, int);
  unsigned long (*ERR_get_error)();
  void (*ERR_clear_error)();
  void (*ERR_error_string_n)(unsigned long, char*, size_t);
};

// OpenSSL's numbers.
constexpr int kVerifyPeer = 1, kPem = 1, kWantRead = 2, kWantWrite = 3, kZeroReturn = 6;
constexpr int kSetServerName = 55, kSetMinimum = 123;
constexpr long kTls12 = 0x0303;

Status Load(OpenSsl* ssl) {
  void* library = nullptr;
  for (const char* name : {"libssl.so.3", "libssl.so.1.1"}) {
    // TensorFlow has functions of the same names.
    library = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return std::string("TLS needs OpenSSL, which cannot be loaded (") + dlerror() +
           "): sudo apt-get install libssl3";
  }
  std::string missing;
  const auto bind = [&](auto* function, const char* name) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    if (*function == nullptr && missing.empty()) missing = name;
  };
  bind(&ssl->TLS_client_method, "TLS_client_method");
  bind(&ssl->SSL_CTX_new, "SSL_CTX_new");
  bind(&ssl->SSL_CTX_free, "SSL_CTX_free");
  bind(&ssl->SSL_CTX_set_verify, "SSL_CTX_set_verify");
  bind(&ssl->SSL_CTX_set_default_verify_paths, "SSL_CTX_set_default_verify_paths");
  bind(&ssl->SSL_CTX_load_verify_locations, "SSL_CTX_load_verify_locations");
  bind(&ssl->SSL_CTX_use_certificate_chain_file, "SSL_CTX_use_certificate_chain_file");
  bind(&ssl->SSL_CTX_use_PrivateKey_file, "SSL_CTX_use_PrivateKey_file");
  bind(&ssl->SSL_CTX_ctrl, "SSL_CTX_ctrl");
  bind(&ssl->SSL_new, "SSL_new");
  bind(&ssl->SSL_free, "SSL_free");
  bind(&ssl->SSL_set_bio, "SSL_set_bio");
  bind(&ssl->SSL_set_connect_state, "SSL_set_connect_state");
  bind(&ssl->SSL_do_handshake, "SSL_do_handshake");
  bind(&ssl->SSL_read, "SSL_read");
  bind(&ssl->SSL_write, "SSL_write");
  bind(&ssl->SSL_get_error, "SSL_get_error");
  bind(&ssl->SSL_ctrl, "SSL_ctrl");
  bind(&ssl->SSL_get_verify_result, "SSL_get_verify_result");
  bind(&ssl->SSL_get0_param, "SSL_get0_param");
  bind(&ssl->X509_VERIFY_PARAM_set1_host, "X509_VERIFY_PARAM_set1_host");
  bind(&ssl->X509_VERIFY_PARAM_set1_ip_asc, "X509_VERIFY_PARAM_set1_ip_asc");
  bind(&ssl->X509_verify_cert_error_string, "X509_verify_cert_error_string");
  bind(&ssl->BIO_new, "BIO_new");
  bind(&ssl->BIO_s_mem, "BIO_s_mem");
  bind(&ssl->BIO_read, "BIO_read");
  bind(&ssl->BIO_write, "BIO_write");
  bind(&ssl->ERR_get_error, "ERR_get_error");
  bind(&ssl->ERR_clear_error, "ERR_clear_error");
  bind(&ssl->ERR_error_string_n, "ERR_error_string_n");
  if (missing.empty()) return {};
  dlclose(library);
  return "TLS needs OpenSSL 1.1.1 or newer; the one of this system has no " + missing;
}

const OpenSsl* LoadOpenSsl(Status* error) {
  static std::mutex mutex;
  static OpenSsl ssl;
  static bool loaded = false;
  const std::lock_guard<std::mutex> lock(mutex);
  if (!loaded) *error = Load(&ssl);
  loaded = error->ok();
  return loaded ? &ssl : nullptr;
}

class OpenSslSession : public TlsSession {
 public:
  explicit OpenSslSession(const OpenSsl& ssl) : ssl_(ssl) {}
  ~OpenSslSession() override {
    if (session_ != nullptr) ssl_.SSL_free(session_);  // and what it reads from and writes to
    if (context_ != nullptr) ssl_.SSL_CTX_free(context_);
  }

  Status Open(const RedisOptions& options, const std::string& host) {
    ssl_.ERR_clear_error();
    context_ = ssl_.SSL_CTX_new(ssl_.TLS_client_method());
    if (context_ == nullptr) return Message("TLS");
    ssl_.SSL_CTX_ctrl(context_, kSetMinimum, kTls12, nullptr);
    ssl_.SSL_CTX_set_verify(context_, kVerifyPeer, nullptr);
    const char* authorities = options.ca_file.c_str();
    if (options.ca_file.empty()) {
      ssl_.SSL_CTX_set_default_verify_paths(context_);
    } else if (ssl_.SSL_CTX_load_verify_locations(context_, authorities, nullptr) != 1) {
      return Message("ssl_ca_certs=" + options.ca_file);
    }
    if (!options.cert_file.empty()) {
      const char *cert = options.cert_file.c_str(), *key = options.key_file.c_str();
      if (ssl_.SSL_CTX_use_certificate_chain_file(context_, cert) != 1) {
        return Message("ssl_certfile=" + options.cert_file);
      }
      if (ssl_.SSL_CTX_use_PrivateKey_file(context_, key, kPem) != 1) {
        return Message("ssl_keyfile=" + options.key_file);
      }
    }
    session_ = ssl_.SSL_new(context_);
    if (session_ == nullptr) return Message("TLS");
    received_ = ssl_.BIO_new(ssl_.BIO_s_mem());
    to_send_ = ssl_.BIO_new(ssl_.BIO_s_mem());
    ssl_.SSL_set_bio(session_, received_, to_send_);
    ssl_.SSL_set_connect_state(session_);
    return options.check_hostname ? ExpectHost(host) : Status();
  }

  Status Shake(bool* done) override {
    ssl_.ERR_clear_error();
    const int result = ssl_.SSL_do_handshake(session_);
    *done = result == 1;
    if (*done || Waits(result)) return {};
    const long verified = ssl_.SSL_get_verify_result(session_);
    if (verified == 0) return Message("TLS");
    return std::string("TLS: the server's certificate is not accepted: ") +
           ssl_.X509_verify_cert_error_string(verified) +
           "; name its authority in ssl_ca_certs=FILE";
  }

  Status TakeEncrypted(const char* bytes, size_t count) override {
    const int taken = ssl_.BIO_write(received_, bytes, static_cast<int>(count));
    return taken == static_cast<int>(count) ? Status() : Message("TLS");
  }

  void MoveEncrypted(std::vector<char>* bytes) override {
    char some[16384];
    for (int count; (count = ssl_.BIO_read(to_send_, some, sizeof(some))) > 0;) {
      bytes->insert(bytes->end(), some, some + count);
    }
  }

  Status Write(const char* bytes, size_t count) override {
    constexpr size_t kAtOnce = 1 << 20;
    for (size_t begin = 0; begin < count; begin += kAtOnce) {
      ssl_.ERR_clear_error();
      const int some = static_cast<int>(std::min(kAtOnce, count - begin));
      if (ssl_.SSL_write(session_, bytes + begin, some) != some) return Message("TLS");
    }
    return {};
  }

  size_t Read(char* bytes, size_t most, bool* ended, Status* error) override {
    ssl_.ERR_clear_error();
    const int count = ssl_.SSL_read(session_, bytes, static_cast<int>(most));
    if (count > 0) return count;
    *ended = ssl_.SSL_get_error(session_, count) == kZeroReturn;
    if (!*ended && !Waits(count)) *error = Message("TLS");
    return 0;
  }

 private:
  Status ExpectHost(const std::string& host) {
    void* expected = ssl_.SSL_get0_param(session_);
    unsigned char address[16];
    const char* name = host.c_str();
    if (inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1) {
      if (ssl_.X509_VERIFY_PARAM_set1_ip_asc(expected, name) == 1) return {};
    } else if (ssl_.X509_VERIFY_PARAM_set1_host(expected, name, host.size()) == 1) {
      ssl_.SSL_ctrl(session_, kSetServerName, 0, const_cast<char*>(name));
      return {};
    }
    return Message("TLS");
  }

  bool Waits(int result) const {
    const int error = ssl_.SSL_get_error(session_, result);
    return error == kWantRead || error == kWantWrite;
  }

  Status Message(const std::string& where) const {
    char text[256] = "the connection ended";
    if (const unsigned long number = ssl_.ERR_get_error(); number != 0) {
      ssl_.ERR_error_string_n(number, text, sizeof(text));
    }
    return where + ": " + text;
  }

  const OpenSsl& ssl_;
  void *context_ = nullptr, *session_ = nullptr;
  void *received_ = nullptr, *to_send_ = nullptr;  // the session's
};

}  // namespace

std::unique_ptr<TlsSession> MakeTlsSession(const RedisOptions& options, const std::string& host,
                                           Status* error) {
  const OpenSsl* ssl = LoadOpenSsl(error);
  if (ssl == nullptr) return nullptr;
  auto session = std::make_unique<OpenSslSession>(*ssl);
  *error = session->Open(options, host);
  if (!error->ok()) return nullptr;
  return session;
}

}  // namespace group_embedding
