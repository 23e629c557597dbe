// Entry points: streams, events, captures and graphs.
#pragma once

#include "queue.hpp"

using namespace fake;

// Returns whether a query reports the event as unfinished a little longer, although its work may be
// done.
static bool holds_back(Event& event) {
  const long long wanted = state().settings.event_queries;
  return wanted > 0 && event.last->sequence > queues().seen_sequence && event.queries < wanted;
}

extern "C" {

CUresult cuStreamCreateWithPriority(CUstream* handle, unsigned int flags, int /* priority: any is clamped */) {
  return driver_call(Needs::kContext, [&] {
    require(handle != nullptr && flags <= 1);
    *handle = new_handle<CUstream>();
    queues().streams[*handle].reset(new Stream{*handle, &current_context(), flags == 0});
    return CUDA_SUCCESS;
  });
}

// Legal while work waits, but an engine should not end like this.
CUresult cuStreamDestroy_v2(CUstream handle) {
  return driver_call(Needs::kContext, [&] {
    auto found = queues().streams.find(handle);
    require(found != queues().streams.end(), CUDA_ERROR_INVALID_HANDLE);
    Stream& stream = *found->second;
    if (!stream.queue.empty()) record_violation("a stream is destroyed while work waits in it");
    run_stream(stream);
    if (stream.capture) {
      stream.capture->invalid = true;
      stream.capture->members.erase(&stream);
      stream.capture->unjoined.erase(&stream);
    }
    queues().streams.erase(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags) {
  return driver_call(Needs::kContext, [&] {
    require(flags == 0);
    Stream& stream = stream_for_work(handle);
    Event& event = find_event(event_handle);
    ++state().counters.waits;
    if (event.captured) {
      const std::shared_ptr<Capture> capture = event.captured;
      require(!capture->members.empty(), CUDA_ERROR_CAPTURED_EVENT); // the capture has ended
      if (stream.capture && stream.capture != capture) {
        stream.capture->invalid = capture->invalid = true;
        refuse(CUDA_ERROR_STREAM_CAPTURE_MERGE);
      }
      require(&stream != stream.context->legacy.get(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
      if (!stream.capture) {
        stream.capture = capture;
        capture->members.insert(&stream);
      }
      capture->unjoined.erase(event.captured_from);
      if (&stream != capture->origin) capture->unjoined.insert(&stream);
      return CUDA_SUCCESS;
    }
    if (stream.capture) {
      if (event.last == nullptr) return CUDA_SUCCESS;
      invalidate(stream);
      refuse(CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    }
    if (event.last != nullptr && !event.last->done) enqueue(stream, std::monostate{}, {event.last});
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamSynchronize(CUstream handle) {
  return driver_call(Needs::kContext, [&] {
    Stream& stream = find_stream(handle);
    require_not_capturing(stream);
    require_no_implicit_dependency(stream);
    ++state().counters.synchronizations;
    run_stream(stream);
    return state().sticky;
  });
}

CUresult cuStreamQuery(CUstream handle) {
  return driver_call(Needs::kContext, [&] {
    Stream& stream = find_stream(handle);
    require_not_capturing(stream);
    require_no_implicit_dependency(stream);
    ++state().counters.queries;
    if (state().settings.event_queries >= 0 && !stream.queue.empty()) run_one_towards(stream.queue.back());
    require(state().sticky == CUDA_SUCCESS, state().sticky);
    return stream.queue.empty() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuEventCreate(CUevent* handle, unsigned int flags) {
  return driver_call(Needs::kContext, [&] {
    require(handle != nullptr && flags <= 3);
    if (is_due(state().settings.fail_event)) refuse(CUDA_ERROR_OUT_OF_MEMORY);
    *handle = new_handle<CUevent>();
    queues().events[*handle] = Event{&current_context(), flags};
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy_v2(CUevent handle) {
  return driver_call(Needs::kContext, [&] {
    find_event(handle);
    queues().events.erase(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  return driver_call(Needs::kContext, [&] {
    Event& event = find_event(handle);
    Stream& stream = stream_for_work(stream_handle);
    require(event.context == stream.context, CUDA_ERROR_INVALID_HANDLE);
    ++state().counters.records;
    event.queries = 0;
    event.captured = stream.capture;
    event.captured_from = &stream;
    event.last = enqueue(stream, std::monostate{});
    return CUDA_SUCCESS;
  });
}

// Needs no context, because the event knows its context.
CUresult cuEventQuery(CUevent handle) {
  return driver_call(Needs::kInit, [&] {
    Event& event = find_event(handle);
    require(!event.captured, CUDA_ERROR_CAPTURED_EVENT);
    require_no_capture();
    ++state().counters.queries;
    if (event.last == nullptr) return CUDA_SUCCESS;
    if (holds_back(event)) {
      ++event.queries;
      return CUDA_ERROR_NOT_READY;
    }
    if (!event.last->done && state().settings.event_queries >= 0) run_one_towards(event.last);
    require(state().sticky == CUDA_SUCCESS, state().sticky);
    return event.last->done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
}

CUresult cuEventSynchronize(CUevent handle) {
  return driver_call(Needs::kContext, [&] {
    Event& event = find_event(handle);
    require(!event.captured, CUDA_ERROR_CAPTURED_EVENT);
    require_no_capture();
    ++state().counters.synchronizations;
    if (event.last != nullptr) run_until(event.last);
    note_waited();
    return state().sticky;
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return driver_call(Needs::kContext, [&] {
    require(milliseconds != nullptr);
    for (CUevent handle : {start, end}) {
      Event& event = find_event(handle);
      require(!event.captured, CUDA_ERROR_CAPTURED_EVENT);
      require((event.flags & 2) == 0 && event.last != nullptr, CUDA_ERROR_INVALID_HANDLE);
    }
    const Event &first = find_event(start), &second = find_event(end);
    require(first.last->done && second.last->done, CUDA_ERROR_NOT_READY);
    *milliseconds = (float)((double)second.last->ended_ns - (double)first.last->ended_ns) / 1e6f;
    return CUDA_SUCCESS;
  });
}

// ------------------------------------------------------------------------------------------------ captures and graphs

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus* status) {
  return driver_call(Needs::kContext, [&] {
    require(status != nullptr);
    Stream& stream = find_stream(handle);
    for (Stream* other : all_streams()) {
      const bool implicit = other->capture && other->blocking && other->context == stream.context;
      require(!implicit || &stream != stream.context->legacy.get(), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    }
    *status = (CUstreamCaptureStatus)(!stream.capture ? 0 : stream.capture->invalid ? 2 : 1);
    return CUDA_SUCCESS;
  });
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return driver_call(Needs::kInit, [&] {
    require(mode != nullptr && 0 <= (int)*mode && (int)*mode <= 2);
    const int before = thread_capture_mode;
    thread_capture_mode = (int)*mode;
    *mode = (CUstreamCaptureMode)before;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode) {
  return driver_call(Needs::kContext, [&] {
    require(0 <= (int)mode && (int)mode <= 2);
    Stream& stream = find_stream(handle);
    require(&stream != stream.context->legacy.get(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    require(!stream.capture, CUDA_ERROR_ILLEGAL_STATE);
    auto capture = std::make_shared<Capture>();
    capture->origin = &stream;
    capture->mode = (int)mode;
    capture->thread = std::this_thread::get_id();
    capture->members.insert(&stream);
    stream.capture = capture;
    return CUDA_SUCCESS;
  });
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph* graph) {
  return driver_call(Needs::kContext, [&] {
    require(graph != nullptr);
    *graph = nullptr;
    Stream& stream = find_stream(handle);
    const std::shared_ptr<Capture> capture = stream.capture;
    require(capture != nullptr, CUDA_ERROR_ILLEGAL_STATE);
    require(capture->mode == 2 || capture->thread == std::this_thread::get_id(),
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    require(capture->origin == &stream, CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    const bool joined = capture->unjoined.empty();
    end_capture(capture);
    capture->members.clear();
    require(!capture->invalid, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    require(joined, CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    *graph = new_handle<CUgraph>();
    queues().graphs[*graph] = std::move(capture->works);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph, unsigned long long /* flags */) {
  return driver_call(Needs::kContext, [&] {
    auto found = queues().graphs.find(graph);
    require(executable != nullptr && found != queues().graphs.end());
    *executable = new_handle<CUgraphExec>();
    queues().executables[*executable] = found->second;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphLaunch(CUgraphExec executable, CUstream handle) {
  return driver_call(Needs::kContext, [&] {
    auto found = queues().executables.find(executable);
    require(found != queues().executables.end());
    Stream& stream = stream_for_work(handle);
    ++state().counters.graph_launches;
    for (const Work& work : found->second) enqueue(stream, work);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphExecDestroy(CUgraphExec executable) {
  return driver_call(Needs::kInit, [&] {
    require(queues().executables.erase(executable) == 1);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphDestroy(CUgraph graph) {
  return driver_call(Needs::kInit, [&] {
    require(queues().graphs.erase(graph) == 1);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
