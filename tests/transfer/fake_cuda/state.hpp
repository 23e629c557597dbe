// The state of the fake driver: settings, counters, contexts. One mutex guards all of it, and every
// entry point takes it.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "driver_types.hpp"

// Hidden, so that two copies of this library in one process are two drivers, and neither is mixed up
// with a real libcuda.
namespace [[gnu::visibility("hidden")]] fake {

// Thrown by checks within an entry point. It contains the result to return.
struct Refusal {
  CUresult result;
};

[[noreturn]] inline void refuse(CUresult result) { throw Refusal{result}; }

inline void require(bool holds, CUresult otherwise = CUDA_ERROR_INVALID_VALUE) {
  if (!holds) refuse(otherwise);
}

// Thrown while work is executed: an error after which the context cannot be used.
struct DeviceFault {
  CUresult result;
  std::string message;
};

// Settings of a test, made with fake_set(key, value) or, before the library is loaded, with
// FAKE_CUDA_<KEY>.
struct Settings {
  // The device.
  long long devices = 1, sms = 8, driver_version = 13000, compute_major = 9, compute_minor = 0, numa_id = 0;
  long long total_memory = 16LL << 30, coherent = 0, has_batch = 1;
  long long host_alias = 0;  // device attribute 91 is 0: registered memory has another address on the device
  // When and in which order work is executed.
  long long lazy = 0, event_queries = -1, reverse = 0;
  // What is checked.
  long long strict = 0, check_races = 1;
  // Failures: a result code for all calls, or the number of the call that fails, counted from 1.
  long long no_device = 0, fail_init = 0, fail_library = 0, fail_register = 0, register_limit = 0;
  long long fail_event = 0;
  long long fail_alloc = 0, fail_launch = 0, fail_launch_code = 719, fail_memcpy = 0, fail_memcpy_code = 700;
  long long fail_execution = 0, fail_execution_code = 700;
};

struct Setting {
  const char* key;
  long long Settings::* field;
};

#define FAKE_SETTING(name) {#name, &Settings::name}
inline const Setting kSettings[] = {
    FAKE_SETTING(devices),        FAKE_SETTING(sms),           FAKE_SETTING(driver_version),
    FAKE_SETTING(compute_major),  FAKE_SETTING(compute_minor), FAKE_SETTING(numa_id),
    FAKE_SETTING(total_memory),   FAKE_SETTING(coherent),      FAKE_SETTING(has_batch),
    FAKE_SETTING(host_alias),     FAKE_SETTING(lazy),          FAKE_SETTING(event_queries),
    FAKE_SETTING(reverse),        FAKE_SETTING(strict),        FAKE_SETTING(check_races),
    FAKE_SETTING(no_device),      FAKE_SETTING(fail_init),     FAKE_SETTING(fail_library),
    FAKE_SETTING(fail_register),  FAKE_SETTING(register_limit), FAKE_SETTING(fail_alloc), FAKE_SETTING(fail_event),
    FAKE_SETTING(fail_launch),    FAKE_SETTING(fail_launch_code), FAKE_SETTING(fail_memcpy),
    FAKE_SETTING(fail_memcpy_code), FAKE_SETTING(fail_execution), FAKE_SETTING(fail_execution_code),
};
#undef FAKE_SETTING

inline Settings settings_of_environment() {
  Settings settings;
  for (const Setting& one : kSettings) {
    std::string name = std::string("FAKE_CUDA_") + one.key;
    for (char& letter : name) letter = (char)std::toupper((unsigned char)letter);
    if (const char* value = std::getenv(name.c_str())) settings.*one.field = std::strtoll(value, nullptr, 0);
  }
  return settings;
}

// Counts of events since the last reset.
struct Counters {
  long long launches = 0, batches = 0, descriptors = 0, memcpys = 0, memsets = 0, graph_launches = 0;
  long long waits = 0, records = 0, synchronizations = 0, queries = 0, executed = 0, bytes = 0, violations = 0;
};

struct Stream;

struct Context {
  CUcontext handle;
  CUdevice device;
  int references = 0;
  std::unique_ptr<Stream> legacy, per_thread;  // streams 0 and 1, and 2
};

struct Library {
  std::map<std::string, CUkernel> kernels;
};

struct Kernel {
  CUlibrary library;
  int width;
};

struct State {
  std::mutex mutex;
  bool initialised = false;
  Settings settings = settings_of_environment();
  Counters counters;
  CUresult sticky = CUDA_SUCCESS;
  std::string first_violation, fault;
  uint64_t last_handle = 0;
  std::vector<std::unique_ptr<Context>> contexts;  // by device
  std::map<CUlibrary, Library> libraries;
  std::map<CUkernel, Kernel> kernels;
};

// Never destroyed: threads of the program under test may outlive main.
inline State& state() {
  static State& one = *new State;
  return one;
}

inline thread_local CUcontext current_handle = nullptr;

// Handles are numbers that are never addresses: dereferencing one crashes, and using a stale one is an
// error.
template <typename Handle>
Handle new_handle() {
  return (Handle)(0x00fa4e0000000000ull + 16 * ++state().last_handle);
}

inline void record_violation(const std::string& message) {
  State& s = state();
  if (s.counters.violations++ == 0) s.first_violation = message;
}

// Returns whether the countdown to a failure ends with this call.
inline bool is_due(long long& countdown) { return countdown > 0 && --countdown == 0; }

inline Context* find_context(CUcontext handle) {
  for (auto& one : state().contexts) {
    if (one->handle == handle && handle != nullptr) return one.get();
  }
  return nullptr;
}

inline Context& current_context() {
  Context* context = find_context(current_handle);
  require(context != nullptr, CUDA_ERROR_INVALID_CONTEXT);
  require(context->references > 0, CUDA_ERROR_CONTEXT_IS_DESTROYED);
  return *context;
}

// After an error that the context does not survive, every later call fails. Other errors only fail
// their own call.
inline CUresult fail_with(CUresult result) {
  if (is_sticky(result)) state().sticky = result;
  return result;
}

enum class Needs { kNothing, kInit, kContext };

// The frame of every entry point.
template <typename Body>
CUresult driver_call(Needs needs, Body body) {
  State& s = state();
  std::lock_guard<std::mutex> lock(s.mutex);
  try {
    if (needs != Needs::kNothing) {
      require(s.initialised, CUDA_ERROR_NOT_INITIALIZED);
      require(s.sticky == CUDA_SUCCESS, s.sticky);
      if (needs == Needs::kContext) current_context();
    }
    return body();
  } catch (const Refusal& refusal) {
    return refusal.result;
  } catch (const std::bad_alloc&) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
}

}  // namespace fake
