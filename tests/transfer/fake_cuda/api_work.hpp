// Entry points that put work into a stream.
#pragma once

#include "queue.hpp"

using namespace fake;

// Fails the call, and the context with it, if a test requested that.
static void fail_if_due(long long& countdown, long long code) {
  if (is_due(countdown)) refuse(fail_with((CUresult)code));
}

// Reads the source at the call.
static void read_early(Copy& copy) {
  copy.reads_early = true;
  copy.early.assign((const uint8_t*)copy.src, (const uint8_t*)copy.src + copy.bytes);
}

// A copy that the caller waits for. It uses the legacy stream, whatever the caller's stream is.
static CUresult copy_and_wait(uint64_t dst, uint64_t src, size_t bytes) {
  require_no_capture();
  Stream& stream = stream_for_work(nullptr);
  Settings& settings = state().settings;
  fail_if_due(settings.fail_memcpy, settings.fail_memcpy_code);
  ++state().counters.memcpys;
  ++state().counters.synchronizations;
  if (bytes == 0) return CUDA_SUCCESS;
  bool is_pageable;
  const Copy copy{check_dma(dst, bytes, &is_pageable), check_dma(src, bytes, &is_pageable), bytes};
  run_until(enqueue(stream, CopyWork{{copy}, false}));
  note_waited();
  return state().sticky;
}

extern "C" {

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                        CUstream handle, void** parameters, void** extra) {
  return driver_call(Needs::kContext, [&] {
    Stream& stream = stream_for_work(handle);
    auto kernel = state().kernels.find((CUkernel)function);
    require(kernel != state().kernels.end(), CUDA_ERROR_INVALID_HANDLE);
    require(grid_x != 0 && grid_x <= 0x7fffffffu && block_x != 0 && block_x <= 1024 && shared_bytes <= 49152);
    require(block_x <= 512, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES);  // __launch_bounds__
    require(parameters != nullptr && parameters[0] != nullptr && extra == nullptr);
    KernelWork work{kernel->second.width, grid_x, block_x, {}};
    std::memcpy(&work.params, parameters[0], sizeof work.params);
    const char* mistake = find_mistake(work);
    if (grid_y != 1 || grid_z != 1 || block_y != 1 || block_z != 1) mistake = "the kernels have one dimension";
    if (mistake != nullptr) {
      record_violation("kvpool_copy_" + std::to_string(work.width) + " is launched wrongly: " + mistake);
      refuse(CUDA_ERROR_INVALID_VALUE);
    }
    Settings& settings = state().settings;
    fail_if_due(settings.fail_launch, settings.fail_launch_code);
    ++state().counters.launches;
    enqueue(stream, work);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void* src, size_t bytes) {
  return driver_call(Needs::kContext, [&] { return copy_and_wait(dst, (uint64_t)src, bytes); });
}

CUresult cuMemcpyDtoH_v2(void* dst, CUdeviceptr src, size_t bytes) {
  return driver_call(Needs::kContext, [&] { return copy_and_wait((uint64_t)dst, src, bytes); });
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream handle) {
  return driver_call(Needs::kContext, [&] {
    Stream& stream = stream_for_work(handle);
    Settings& settings = state().settings;
    fail_if_due(settings.fail_memcpy, settings.fail_memcpy_code);
    ++state().counters.memcpys;
    if (bytes == 0) return CUDA_SUCCESS;
    bool to_pageable, from_pageable;
    Copy copy{check_dma(dst, bytes, &to_pageable), check_dma(src, bytes, &from_pageable), bytes};
    if (to_pageable || from_pageable) require_not_capturing(stream);
    // With pageable memory, the call reads the source before it returns, or returns after the destination is written.
    if (from_pageable) read_early(copy);
    const OperationPtr operation = enqueue(stream, CopyWork{{std::move(copy)}, false});
    if (to_pageable) {
      run_until(operation);
      note_waited();
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuMemcpyBatchAsync(CUdeviceptr* dsts, CUdeviceptr* srcs, size_t* sizes, size_t count,
                            CUmemcpyAttributes* attributes, size_t* first_copies, size_t num_attributes, size_t* failed,
                            CUstream handle) {
  return driver_call(Needs::kContext, [&] {
    Settings& settings = state().settings;
    require(settings.has_batch && settings.driver_version >= 12080, CUDA_ERROR_NOT_SUPPORTED);
    require(failed != nullptr && (uint64_t)handle > 1);
    *failed = SIZE_MAX;
    Stream& stream = stream_for_work(handle);
    // The capture continues without the copies.
    require(!stream.capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    require(count != 0 && dsts != nullptr && srcs != nullptr && sizes != nullptr);
    require(attributes != nullptr && first_copies != nullptr && 0 < num_attributes && num_attributes <= count);
    for (size_t k = 0; k < num_attributes; ++k) {
      require(k == 0 ? first_copies[k] == 0 : first_copies[k] > first_copies[k - 1]);
      require(first_copies[k] < count && attributes[k].flags <= 1);
      require(1 <= (int)attributes[k].srcAccessOrder && (int)attributes[k].srcAccessOrder <= 3);
    }
    fail_if_due(settings.fail_memcpy, settings.fail_memcpy_code);
    CopyWork work{{}, true};
    std::vector<Piece> pieces;
    for (size_t i = 0, k = 0; i < count; ++i) {
      if (k + 1 < num_attributes && first_copies[k + 1] == i) ++k;
      *failed = i;
      bool to_pageable, from_pageable;
      require(sizes[i] != 0);
      Copy copy{check_dma(dsts[i], sizes[i], &to_pageable), check_dma(srcs[i], sizes[i], &from_pageable), sizes[i]};
      require(settings.coherent || (!to_pageable && !from_pageable));
      const int order = (int)attributes[k].srcAccessOrder;
      // Unless the copy is in stream order (1), the source may be read at once. That is the worst
      // moment for a source that an earlier operation still has to write. With "any" order (3), the
      // source may also be read when the copy runs.
      if (order != 1) read_early(copy);
      copy.must_stay = order == 3;
      pieces.push_back({copy.dst, copy.src, copy.bytes});
      work.copies.push_back(std::move(copy));
    }
    *failed = SIZE_MAX;
    check_races(pieces, "batch");
    ++state().counters.batches;
    state().counters.descriptors += (long long)count;
    enqueue(stream, std::move(work));
    return CUDA_SUCCESS;
  });
}

CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char value, size_t bytes, CUstream handle) {
  return driver_call(Needs::kContext, [&] {
    Stream& stream = stream_for_work(handle);
    ++state().counters.memsets;
    if (bytes == 0) return CUDA_SUCCESS;
    bool is_pageable;
    const uint64_t begin = check_dma(dst, bytes, &is_pageable);
    require(!is_pageable);
    enqueue(stream, FillWork{begin, bytes, value});
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
