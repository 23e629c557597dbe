// Functions for tests: settings, counters, the order of execution. The real driver has none of them.
#pragma once

#include "queue.hpp"

using namespace fake;

// Drops waiting work without running it, and every stream, event, graph and allocation.
static void drop_objects() {
  Queues& q = queues();
  for (Stream* stream : all_streams()) {
    for (OperationPtr& one : stream->queue) {
      one->done = true;
      one->after.clear();
    }
    stream->queue.clear();
    stream->capture.reset();
  }
  q.streams.clear();
  q.events.clear();
  q.graphs.clear();
  q.executables.clear();
  Memory& m = memory();
  while (!m.allocated.empty()) release(m.allocated.begin()->first);  // not freed at once: its owner may still use it
  m.registered.clear();
  m.marked.clear();
  m.watched.clear();
}

static void clear_records() {
  State& s = state();
  s.settings = settings_of_environment();
  s.counters = Counters{};
  s.sticky = CUDA_SUCCESS;
  s.first_violation.clear();
  s.fault.clear();
  queues().clock_ns = 0;
}

static long long count_of(const std::string& key) {
  const Counters& c = state().counters;
  const std::map<std::string, long long Counters::*> fields = {
      {"launches", &Counters::launches},   {"batches", &Counters::batches},
      {"descriptors", &Counters::descriptors}, {"memcpys", &Counters::memcpys},
      {"memsets", &Counters::memsets},     {"graph_launches", &Counters::graph_launches},
      {"waits", &Counters::waits},         {"records", &Counters::records},
      {"queries", &Counters::queries},     {"synchronizations", &Counters::synchronizations},
      {"executed", &Counters::executed},   {"bytes", &Counters::bytes},
      {"violations", &Counters::violations},
  };
  const auto field = fields.find(key);
  if (field != fields.end()) return c.*field->second;
  const Memory& m = memory();
  if (key == "live_allocs") return count_allocations(Kind::kDevice);
  if (key == "live_host_allocs") return count_allocations(Kind::kHost);
  if (key == "live_bytes") return (long long)m.device_bytes;
  if (key == "live_registrations") return (long long)m.registered.size();
  if (key == "live_streams") return (long long)queues().streams.size();
  if (key == "live_events") return (long long)queues().events.size();
  if (key == "live_graphs") return (long long)(queues().graphs.size() + queues().executables.size());
  if (key == "live_libraries") return (long long)state().libraries.size();
  if (key == "context_references") {
    long long references = 0;
    for (const auto& context : state().contexts) references += context->references;
    return references;
  }
  if (key == "queued") return count_queued();
  if (key == "sticky") return state().sticky;
  return -1;
}

static int mark(void* pointer, size_t bytes, Kind kind) {
  std::lock_guard<std::mutex> lock(state().mutex);
  const uint64_t begin = (uint64_t)pointer;
  if (bytes == 0 || overlaps_any(memory().marked, begin, begin + bytes)) return 1;
  memory().marked[begin] = {begin + bytes, kind, current_handle};
  return 0;
}

extern "C" {

// For use between tests of a program that keeps its objects: runs waiting work, resets settings to
// those of the environment and counters to zero, and clears the error. Everything else stays.
void fake_clear(void) {
  std::lock_guard<std::mutex> lock(state().mutex);
  run_all();
  clear_records();
}

// For use between tests that keep only contexts and libraries: like fake_clear, but drops waiting work
// and all other objects.
void fake_reset(void) {
  std::lock_guard<std::mutex> lock(state().mutex);
  drop_objects();
  clear_records();
}

// Returns to the state of a new process: contexts and libraries are gone, and cuInit has to be called
// again.
void fake_restart(void) {
  fake_reset();
  std::lock_guard<std::mutex> lock(state().mutex);
  State& s = state();
  s.initialised = false;
  s.contexts.clear();
  s.libraries.clear();
  s.kernels.clear();
  current_handle = nullptr;
  thread_capture_mode = 0;
}

// Returns 0, or 1 for an unknown key.
int fake_set(const char* key, long long value) {
  std::lock_guard<std::mutex> lock(state().mutex);
  for (const Setting& one : kSettings) {
    if (std::strcmp(one.key, key) != 0) continue;
    state().settings.*one.field = value;
    if (!state().settings.lazy) run_all();
    return 0;
  }
  return 1;
}

// Returns -1 for an unknown key.
long long fake_get(const char* key) {
  std::lock_guard<std::mutex> lock(state().mutex);
  for (const Setting& one : kSettings) {
    if (std::strcmp(one.key, key) == 0) return state().settings.*one.field;
  }
  return -1;
}

// Returns -1 for an unknown key.
long long fake_count(const char* key) {
  std::lock_guard<std::mutex> lock(state().mutex);
  check_all_guards();
  return count_of(key);
}

// Returns the first violation, or an empty text. The text is valid until the next call from this
// thread.
const char* fake_violation(void) {
  static thread_local std::string text;
  std::lock_guard<std::mutex> lock(state().mutex);
  check_all_guards();
  text = state().first_violation;
  return text.c_str();
}

// Returns the fault that stopped the device, or an empty text.
const char* fake_fault(void) {
  static thread_local std::string text;
  std::lock_guard<std::mutex> lock(state().mutex);
  text = state().fault;
  return text.c_str();
}

// Runs all waiting work in the order of the calls.
void fake_run_all(void) {
  std::lock_guard<std::mutex> lock(state().mutex);
  run_all();
}

// Runs the oldest waiting operation. Returns 1, or 0 if there is none. Records of events and waits are
// operations, too.
int fake_run_one(void) {
  std::lock_guard<std::mutex> lock(state().mutex);
  return run_pick(0) != 0;
}

// Runs one of the operations that could run now: number `choice` modulo their number, oldest first.
// Returns their number.
int fake_run_pick(unsigned long long choice) {
  std::lock_guard<std::mutex> lock(state().mutex);
  return run_pick(choice);
}

// Marks host memory as unknown to the driver, so that it is refused. Returns 0, or 1 if the range is
// already marked.
int fake_mark_pageable(void* pointer, size_t bytes) { return mark(pointer, bytes, Kind::kPageable); }

// Marks memory of the test as device memory, for example a CPU tensor that stands for a CUDA tensor.
int fake_mark_device(void* pointer, size_t bytes) { return mark(pointer, bytes, Kind::kDevice); }

int fake_unmark(void* pointer) {
  std::lock_guard<std::mutex> lock(state().mutex);
  return memory().marked.erase((uint64_t)pointer) == 1 ? 0 : 1;
}

// Watches memory that the test is going to unmap. fake_unwatch, called just before that, runs waiting
// work that touches the memory, and records a violation if there is such work.
int fake_watch(void* pointer, size_t bytes) {
  std::lock_guard<std::mutex> lock(state().mutex);
  const uint64_t begin = (uint64_t)pointer;
  if (bytes == 0 || overlaps_any(memory().watched, begin, begin + bytes)) return 1;
  memory().watched[begin] = {begin + bytes, Kind::kUnknown};
  return 0;
}

int fake_unwatch(void* pointer) {
  std::lock_guard<std::mutex> lock(state().mutex);
  auto found = memory().watched.find((uint64_t)pointer);
  if (found == memory().watched.end()) return 1;
  finish_work_on(found->first, found->second.end, "watched memory is given back");
  memory().watched.erase((uint64_t)pointer);
  return 0;
}

}  // extern "C"
