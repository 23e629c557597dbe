// The part of cuda.h (12.8) that the fake driver implements. If the real cuda.h is included first, it
// is used instead, and a compiler then compares every signature (see README.md).
#pragma once

#include <cstddef>
#include <cstdint>

#ifndef __cuda_cuda_h__
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef uint64_t cuuint64_t;
typedef struct CUctx_st* CUcontext;
typedef struct CUlib_st* CUlibrary;
typedef struct CUkern_st* CUkernel;
typedef struct CUfunc_st* CUfunction;
typedef struct CUstream_st* CUstream;
typedef struct CUevent_st* CUevent;
typedef struct CUgraph_st* CUgraph;
typedef struct CUgraphExec_st* CUgraphExec;
// Only passed through.
typedef int CUjit_option, CUlibraryOption, CUdevice_attribute, CUpointer_attribute;
typedef int CUstreamCaptureMode, CUstreamCaptureStatus, CUdriverProcAddressQueryResult;

struct CUmemLocation {
  int type, id;
};
struct CUmemcpyAttributes {
  int srcAccessOrder;
  CUmemLocation srcLocHint, dstLocHint;
  unsigned int flags;
};
static_assert(sizeof(CUmemcpyAttributes) == 24, "CUmemcpyAttributes");
#endif

#define FAKE_RESULTS(RESULT) \
  RESULT(CUDA_SUCCESS, 0, "no error") \
  RESULT(CUDA_ERROR_INVALID_VALUE, 1, "invalid argument") \
  RESULT(CUDA_ERROR_OUT_OF_MEMORY, 2, "out of memory") \
  RESULT(CUDA_ERROR_NOT_INITIALIZED, 3, "initialization error") \
  RESULT(CUDA_ERROR_DEINITIALIZED, 4, "driver shutting down") \
  RESULT(CUDA_ERROR_DEVICE_UNAVAILABLE, 46, "CUDA-capable device is busy or unavailable") \
  RESULT(CUDA_ERROR_NO_DEVICE, 100, "no CUDA-capable device is detected") \
  RESULT(CUDA_ERROR_INVALID_DEVICE, 101, "invalid device ordinal") \
  RESULT(CUDA_ERROR_INVALID_IMAGE, 200, "device kernel image is invalid") \
  RESULT(CUDA_ERROR_INVALID_CONTEXT, 201, "invalid device context") \
  RESULT(CUDA_ERROR_NO_BINARY_FOR_GPU, 209, "no kernel image for this device") \
  RESULT(CUDA_ERROR_ECC_UNCORRECTABLE, 214, "uncorrectable ECC error encountered") \
  RESULT(CUDA_ERROR_INVALID_PTX, 218, "a PTX JIT compilation failed") \
  RESULT(CUDA_ERROR_UNSUPPORTED_PTX_VERSION, 222, "PTX compiled with an unsupported toolchain") \
  RESULT(CUDA_ERROR_INVALID_HANDLE, 400, "invalid resource handle") \
  RESULT(CUDA_ERROR_ILLEGAL_STATE, 401, "the operation cannot be performed in the present state") \
  RESULT(CUDA_ERROR_NOT_FOUND, 500, "named symbol not found") \
  RESULT(CUDA_ERROR_NOT_READY, 600, "device not ready") \
  RESULT(CUDA_ERROR_ILLEGAL_ADDRESS, 700, "an illegal memory access was encountered") \
  RESULT(CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, 701, "too many resources requested for launch") \
  RESULT(CUDA_ERROR_LAUNCH_TIMEOUT, 702, "the launch timed out and was terminated") \
  RESULT(CUDA_ERROR_CONTEXT_IS_DESTROYED, 709, "context is destroyed") \
  RESULT(CUDA_ERROR_ASSERT, 710, "device-side assert triggered") \
  RESULT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712, "part or all of the memory range is registered") \
  RESULT(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, 713, "pointer does not correspond to a registered region") \
  RESULT(CUDA_ERROR_HARDWARE_STACK_ERROR, 714, "hardware stack error") \
  RESULT(CUDA_ERROR_ILLEGAL_INSTRUCTION, 715, "an illegal instruction was encountered") \
  RESULT(CUDA_ERROR_MISALIGNED_ADDRESS, 716, "misaligned address") \
  RESULT(CUDA_ERROR_INVALID_ADDRESS_SPACE, 717, "operation not supported on this address space") \
  RESULT(CUDA_ERROR_INVALID_PC, 718, "invalid program counter") \
  RESULT(CUDA_ERROR_LAUNCH_FAILED, 719, "unspecified launch failure") \
  RESULT(CUDA_ERROR_NOT_PERMITTED, 800, "operation not permitted") \
  RESULT(CUDA_ERROR_NOT_SUPPORTED, 801, "operation not supported") \
  RESULT(CUDA_ERROR_SYSTEM_NOT_READY, 802, "system not yet initialized") \
  RESULT(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, 803, "unsupported driver") \
  RESULT(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, 900, "operation not permitted when stream is capturing") \
  RESULT(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, 901, "previous error during capture") \
  RESULT(CUDA_ERROR_STREAM_CAPTURE_MERGE, 902, "merge of separate capture sequences") \
  RESULT(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, 903, "capture did not begin in this stream") \
  RESULT(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, 904, "capturing stream has unjoined work") \
  RESULT(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, 905, "dependency on uncaptured work in another stream") \
  RESULT(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, 906, "dependency of the legacy stream on a capturing stream") \
  RESULT(CUDA_ERROR_CAPTURED_EVENT, 907, "operation not permitted on a captured event") \
  RESULT(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD, 908, "capture ended by another thread") \
  RESULT(CUDA_ERROR_UNKNOWN, 999, "unknown error")

#ifndef __cuda_cuda_h__
#define FAKE_RESULT(name, value, text) name = value,
enum CUresult { FAKE_RESULTS(FAKE_RESULT) };
#undef FAKE_RESULT
#endif

namespace [[gnu::visibility("hidden")]] fake {

struct ResultText {
  const char *name, *text;
};

// Returns nullptr for an unknown number.
inline const ResultText* result_text(int result) {
#define FAKE_RESULT(name, value, text) \
  case value: { \
    static const ResultText kText = {#name, text}; \
    return &kText; \
  }
  switch (result) { FAKE_RESULTS(FAKE_RESULT) }
#undef FAKE_RESULT
  return nullptr;
}

// After one of these errors, a context cannot be used any more.
inline bool is_sticky(int result) {
  return result == 214 || result == 700 || result == 702 || result == 710 || (714 <= result && result <= 719);
}

}  // namespace fake
