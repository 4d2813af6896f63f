// A small test framework: TEST(Name) { ... } registers a test, CHECK_* print the expected and the
// actual value, and each executable has one `main` that runs its tests.
//
//   TEST(MeanOfEmptySampleIsZero) { CHECK_EQ(Mean({}), 0.0f); }
//
// A failed check ends its test; the others run on.
#pragma once

#include <cmath>
#include <cstdio>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/status.h"

namespace group_embedding {
namespace testing {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Test {
  const char* name;
  void (*run)();
};

inline std::vector<Test>& Tests() {
  static std::vector<Test> tests;
  return tests;
}

struct Registration {
  Registration(const char* name, void (*run)()) { Tests().push_back({name, run}); }
};

template <typename T>
std::string Show(const T& value) {
  std::ostringstream text;
  text.precision(9);
  text << value;
  return text.str();
}

template <typename T>
std::string Show(const std::vector<T>& values) {
  std::string text = "{";
  for (const T& value : values) text += (text.size() > 1 ? ", " : "") + Show(value);
  return text + "}";
}

inline void Fail(const char* file, int line, const std::string& message) {
  throw Failure(std::string(file) + ":" + std::to_string(line) + ": " + message);
}

template <typename A, typename B>
void CheckEqual(const char* file, int line, const char* text, const A& actual, const B& expected) {
  if (actual == expected) return;
  Fail(file, line, std::string(text) + ": expected " + Show(expected) + ", got " + Show(actual));
}

inline void CheckNear(const char* file, int line, const char* text, double actual, double expected,
                      double tolerance) {
  if (std::fabs(actual - expected) <= tolerance) return;
  Fail(file, line,
       std::string(text) + ": expected " + Show(expected) + " within " + Show(tolerance) +
           ", got " + Show(actual));
}

inline void CheckContains(const char* file, int line, const char* text, const std::string& actual,
                          const std::string& part) {
  if (actual.find(part) != std::string::npos) return;
  Fail(file, line, std::string(text) + ": expected '" + part + "' in '" + actual + "'");
}

inline void CheckContains(const char* file, int line, const char* text, const Status& actual,
                          const std::string& part) {
  CheckContains(file, line, text, actual.message(), part);
}

inline void CheckOk(const char* file, int line, const char* text, const Status& actual) {
  if (!actual.ok()) Fail(file, line, std::string(text) + ": expected OK, got " + actual.message());
}

inline int RunAll() {
  int failed = 0;
  for (const Test& test : Tests()) {
    try {
      test.run();
      std::printf("ok      %s\n", test.name);
    } catch (const std::exception& error) {
      ++failed;
      std::printf("FAILED  %s\n        %s\n", test.name, error.what());
    }
  }
  std::printf("%zu tests, %d failed\n", Tests().size(), failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace testing
}  // namespace group_embedding

#define TEST(Name)                                                                         \
  static void Name();                                                                      \
  static const ::group_embedding::testing::Registration Name##_registration(#Name, &Name); \
  static void Name()

#define CHECK_TRUE(condition) \
  ((condition) ? void()       \
               : ::group_embedding::testing::Fail(__FILE__, __LINE__, #condition " is false"))
#define CHECK_EQ(actual, expected) \
  ::group_embedding::testing::CheckEqual(__FILE__, __LINE__, #actual, actual, expected)
#define CHECK_OK(status) ::group_embedding::testing::CheckOk(__FILE__, __LINE__, #status, status)
#define CHECK_NEAR(actual, expected, tolerance) \
  ::group_embedding::testing::CheckNear(__FILE__, __LINE__, #actual, actual, expected, tolerance)
#define CHECK_CONTAINS(actual, part) \
  ::group_embedding::testing::CheckContains(__FILE__, __LINE__, #actual, actual, part)

int main() { return ::group_embedding::testing::RunAll(); }
