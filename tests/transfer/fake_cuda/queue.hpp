// Streams, events, captures and graphs: the waiting work, and which of it may run.
#pragma once

#include <variant>

#include "kernels.hpp"

namespace [[gnu::visibility("hidden")]] fake {

struct Copy {
  uint64_t dst, src, bytes;
  bool reads_early = false;     // the source was read at the call, into `early`
  bool must_stay = false;       // ... and may not change before the copy runs
  std::vector<uint8_t> early{};
};

struct CopyWork {
  std::vector<Copy> copies;
  bool is_batch;
};

struct FillWork {
  uint64_t dst, bytes;
  uint8_t value;
};

// std::monostate: an event record or a wait, which only affects the order.
using Work = std::variant<std::monostate, KernelWork, CopyWork, FillWork>;

struct Operation {
  uint64_t sequence;  // in order of the calls
  Stream* stream;
  Work work;
  std::vector<std::shared_ptr<Operation>> after;  // in other streams
  bool done = false;
  uint64_t ended_ns = 0;
};

using OperationPtr = std::shared_ptr<Operation>;

// A sequence of calls that becomes a graph. Its streams record, in the order of the calls; they run nothing.
struct Capture {
  Stream* origin;
  int mode;
  std::thread::id thread;
  bool invalid = false;
  std::vector<Work> works;
  std::set<Stream*> members, unjoined;
};

struct Stream {
  CUstream handle;
  Context* context;
  bool blocking;  // synchronises with the legacy stream
  std::deque<OperationPtr> queue{};
  std::shared_ptr<Capture> capture{};
};

struct Event {
  Context* context;
  unsigned flags;
  OperationPtr last{}; // nullptr: never recorded, which counts as an event that happened
  long long queries = 0;                // since then
  std::shared_ptr<Capture> captured{};  // it was last recorded there
  Stream* captured_from = nullptr;
};

struct Queues {
  std::map<CUstream, std::unique_ptr<Stream>> streams;
  std::map<CUevent, Event> events;
  std::map<CUgraph, std::vector<Work>> graphs;
  std::map<CUgraphExec, std::vector<Work>> executables;
  uint64_t last_sequence = 0, seen_sequence = 0;  // of the last operation; what some call has waited for
  uint64_t clock_ns = 0;  // of the device: advances with the work done, the same in every run
};

inline Queues& queues() {
  static Queues& one = *new Queues;
  return one;
}

inline thread_local int thread_capture_mode = 0;

inline std::vector<Stream*> all_streams() {
  std::vector<Stream*> streams;
  for (auto& context : state().contexts) {
    streams.push_back(context->legacy.get());
    streams.push_back(context->per_thread.get());
  }
  for (auto& one : queues().streams) streams.push_back(one.second.get());
  return streams;
}

inline Stream& find_stream(CUstream handle) {
  Context& context = current_context();
  const uint64_t number = (uint64_t)handle;
  if (number <= 1) return *context.legacy;
  if (number == 2) return *context.per_thread;
  auto found = queues().streams.find(handle);
  require(found != queues().streams.end(), CUDA_ERROR_INVALID_HANDLE);
  return *found->second;
}

inline Event& find_event(CUevent handle) {
  auto found = queues().events.find(handle);
  require(found != queues().events.end(), CUDA_ERROR_INVALID_HANDLE);
  return found->second;
}

// ---------------------------------------------------------------------------------------------------------- execution

inline uint64_t run_work(const Work& work) {
  Counters& counters = state().counters;
  if (const auto* kernel = std::get_if<KernelWork>(&work)) {
    const long long before = counters.bytes;
    run_kernel(*kernel);
    return (uint64_t)(counters.bytes - before);
  }
  if (const auto* fill = std::get_if<FillWork>(&work)) {
    std::memset((void*)fill->dst, fill->value, fill->bytes);
    return fill->bytes;
  }
  uint64_t bytes = 0;
  if (const auto* copy = std::get_if<CopyWork>(&work)) {
    const size_t count = copy->copies.size();
    for (size_t i = 0; i < count; ++i) {
      const Copy& one = copy->copies[state().settings.reverse ? count - 1 - i : i];
      if (one.must_stay && std::memcmp(one.early.data(), (const void*)one.src, one.bytes) != 0) {
        record_violation("the source of an unordered copy changed before it ran: " + describe(one.src, one.bytes));
      }
      std::memmove((void*)one.dst, one.reads_early ? one.early.data() : (const void*)one.src, one.bytes);
      bytes += one.bytes;
    }
    counters.bytes += (long long)bytes;
  }
  return bytes;
}

// The context is lost, with all the work that waits in it.
inline void poison(CUresult result, const std::string& message) {
  state().sticky = result;
  if (state().fault.empty()) state().fault = message;
  for (Stream* stream : all_streams()) {
    for (OperationPtr& one : stream->queue) one->done = true;
    stream->queue.clear();
  }
}

inline void execute(Operation& operation) {
  Settings& settings = state().settings;
  if (!std::holds_alternative<std::monostate>(operation.work)) {
    try {
      if (is_due(settings.fail_execution)) {
        throw DeviceFault{(CUresult)settings.fail_execution_code, "fail_execution was set"};
      }
      const uint64_t bytes = run_work(operation.work);
      queues().clock_ns += 2000 + bytes / 16;
      ++state().counters.executed;
    } catch (const DeviceFault& fault) {
      poison(fault.result, fault.message);
    }
    operation.work = std::monostate{};
  }
  operation.done = true;
  operation.ended_ns = queues().clock_ns;
  operation.after.clear();
}

inline bool may_run(const Operation& operation) {
  return std::all_of(operation.after.begin(), operation.after.end(), [](const OperationPtr& one) { return one->done; });
}

// Runs the next operation that this one waits for, or this one, and no other. The parameter is passed
// by value, because the operation leaves a queue from which callers may have taken it.
inline void run_one_towards(OperationPtr next) {
  for (;;) {
    next = next->stream->queue.front();  // streams run in order
    auto waits_for =
        std::find_if(next->after.begin(), next->after.end(), [](const OperationPtr& one) { return !one->done; });
    if (waits_for == next->after.end()) break;
    next = *waits_for;
  }
  next->stream->queue.pop_front();
  execute(*next);
}

inline void run_until(OperationPtr wanted) {
  while (!wanted->done) run_one_towards(wanted);
}

// The operations that could run now, in order of the calls: the heads of streams that wait for nothing.
inline std::vector<OperationPtr> runnable() {
  std::vector<OperationPtr> heads;
  for (Stream* stream : all_streams()) {
    if (!stream->queue.empty() && may_run(*stream->queue.front())) heads.push_back(stream->queue.front());
  }
  std::sort(heads.begin(), heads.end(), [](const auto& a, const auto& b) { return a->sequence < b->sequence; });
  return heads;
}

// Runs one of these operations. Returns how many there were.
inline int run_pick(uint64_t choice) {
  const std::vector<OperationPtr> heads = runnable();
  if (!heads.empty()) run_one_towards(heads[choice % heads.size()]);
  return (int)heads.size();
}

inline void run_all() {
  while (run_pick(0) != 0) {
  }
}

// After a call that waited, queries must not report any event of the finished work as unfinished.
inline void note_waited() { queues().seen_sequence = queues().last_sequence; }

inline void run_stream(Stream& stream) {
  while (!stream.queue.empty()) run_until(stream.queue.back());
  note_waited();
}

inline long long count_queued() {
  size_t count = 0;
  for (Stream* stream : all_streams()) count += stream->queue.size();
  return (long long)count;
}

// ------------------------------------------------------------------------------------------------------------ capture

inline void invalidate(Stream& stream) {
  if (stream.capture) stream.capture->invalid = true;
}

inline std::set<std::shared_ptr<Capture>> captures() {
  std::set<std::shared_ptr<Capture>> found;
  for (Stream* stream : all_streams()) {
    if (stream->capture) found.insert(stream->capture);
  }
  return found;
}

// For calls that a capture cannot record, such as allocations: while a capture is active that this
// thread has to respect (see cuThreadExchangeStreamCaptureMode), the call is refused, and the capture
// is lost.
inline void require_no_capture() {
  bool refused = false;
  for (const auto& capture : captures()) {
    const bool own = capture->thread == std::this_thread::get_id();
    const bool minds = thread_capture_mode == 0 ? (own ? capture->mode != 2 : capture->mode == 0)
                                                : thread_capture_mode == 1 && own && capture->mode != 2;
    if (minds) capture->invalid = refused = true;
  }
  require(!refused, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

// For calls that wait for a stream or query its state.
inline void require_not_capturing(Stream& stream) {
  if (!stream.capture) return;
  invalidate(stream);
  refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

// The legacy stream waits for all blocking ones, which a capture of one of them cannot see.
inline void require_no_implicit_dependency(Stream& stream) {
  if (&stream != stream.context->legacy.get()) return;
  bool refused = false;
  for (Stream* other : all_streams()) {
    if (other->capture && other->blocking && other->context == stream.context) other->capture->invalid = refused = true;
  }
  require(!refused, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
}

inline void end_capture(const std::shared_ptr<Capture>& capture) {
  for (Stream* member : capture->members) member->capture.reset();
}

// ------------------------------------------------------------------------------------------------------------ enqueue

// For every operation that is put into a stream: checks that the stream belongs to the current context
// and accepts work.
inline Stream& stream_for_work(CUstream handle) {
  Stream& stream = find_stream(handle);
  require(stream.context == &current_context(), CUDA_ERROR_INVALID_HANDLE);
  require(!stream.capture || !stream.capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  require_no_implicit_dependency(stream);
  return stream;
}

// Puts work into the stream's queue, or into the graph that the stream captures; nullptr then.
inline OperationPtr enqueue(Stream& stream, Work work, std::vector<OperationPtr> after = {}) {
  if (stream.capture) {
    if (!std::holds_alternative<std::monostate>(work)) stream.capture->works.push_back(std::move(work));
    if (&stream != stream.capture->origin) stream.capture->unjoined.insert(&stream);
    return nullptr;
  }
  Stream& legacy = *stream.context->legacy;
  if (&stream == &legacy) {
    for (Stream* other : all_streams()) {
      const bool joins = other != &legacy && other->blocking && other->context == stream.context;
      if (joins && !other->queue.empty()) after.push_back(other->queue.back());
    }
  } else if (stream.blocking && !legacy.queue.empty()) {
    after.push_back(legacy.queue.back());
  }
  auto operation = std::make_shared<Operation>();
  operation->sequence = ++queues().last_sequence;
  operation->stream = &stream;
  operation->work = std::move(work);
  operation->after = std::move(after);
  stream.queue.push_back(operation);
  if (!state().settings.lazy) run_until(operation);
  return operation;
}

// ------------------------------------------------------------------------------------------ what waiting work touches

inline bool touches(const Work& work, uint64_t begin, uint64_t end) {
  const auto hits = [&](uint64_t address, uint64_t bytes) {
    const uint64_t at = without_alias(address);
    return address != 0 && overlaps(at, at + bytes, begin, end);
  };
  if (const auto* fill = std::get_if<FillWork>(&work)) return hits(fill->dst, fill->bytes);
  if (const auto* copy = std::get_if<CopyWork>(&work)) {
    return std::any_of(copy->copies.begin(), copy->copies.end(), [&](const Copy& one) {
      return hits(one.dst, one.bytes) || ((!one.reads_early || one.must_stay) && hits(one.src, one.bytes));
    });
  }
  const auto* kernel = std::get_if<KernelWork>(&work);
  if (kernel == nullptr) return false;
  const Params& p = kernel->params;
  const uint64_t table = sizeof(Plane) * (uint64_t)p.num_planes;
  if (hits(p.src_planes, table) || hits(p.dst_planes, table) || hits(p.status, 4)) return true;
  if (hits(p.device_pairs, 16 * (uint64_t)p.num_pairs)) return true;
  try {
    // Reads the tables as they are now. If waiting work still has to fill a table, that is not
    // considered.
    forget_permitted();
    const std::vector<Piece> pieces = pieces_of(*kernel);
    return std::any_of(pieces.begin(), pieces.end(), [&](const Piece& one) {
      return hits(one.dst, one.bytes) || hits(one.src, one.bytes);
    });
  } catch (const DeviceFault&) {
    return false;
  }
}

inline bool waiting_work_touches(uint64_t begin, uint64_t end) {
  for (Stream* stream : all_streams()) {
    for (const OperationPtr& one : stream->queue) {
      if (touches(one->work, begin, end)) return true;
    }
  }
  return false;
}

// Memory is about to be freed. If waiting work needs it, the caller made a mistake. The work runs while
// it still can.
inline void finish_work_on(uint64_t begin, uint64_t end, const char* what) {
  if (!waiting_work_touches(begin, end)) return;
  record_violation(std::string(what) + " while work waits that touches " + describe(begin, end - begin));
  run_all();
}

}  // namespace fake
