// A libcuda.so without a GPU, for the tests of the transfer engine. It is strict, and behaves the same
// in every run.
//
//   g++ -std=c++17 -O2 -fPIC -shared -pthread -DKVPOOL_EMULATE -I cuda fake_cuda.cpp -o libcuda.so.1
//
// It checks arguments as the driver does and runs the kernels of cuda/block_copy.cu on the CPU. It can
// delay all work to the latest moment that CUDA allows (fake_set("lazy", 1)), so that a missing wait
// shows in the bytes. A mistake that the driver would accept, but that an engine must not make, is a
// violation: fake_count("violations"). README.md lists the settings and counters.
#ifndef KVPOOL_EMULATE
#define KVPOOL_EMULATE
#endif

#include "api_device.hpp"
#include "api_memory.hpp"
#include "api_stream.hpp"
#include "api_work.hpp"
#include "control.hpp"

// From CUDA 13 on, this name stands for a function with other parameters. A caller that asks for that
// version gets this function.
static CUresult batch_of_cuda_13() {
  return driver_call(Needs::kNothing, []() -> CUresult {
    record_violation("cuMemcpyBatchAsync was asked for as of CUDA 13: it has other parameters than that of 12.8");
    return CUDA_ERROR_INVALID_VALUE;
  });
}

struct EntryPoint {
  const char* name;
  void* function;
  int since;
};

extern "C" CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                                        CUdriverProcAddressQueryResult* status) {
#define FAKE_ENTRY(name) {#name, (void*)name, 4000}
#define FAKE_ENTRY_V2(name) {#name, (void*)name##_v2, 4000}
  static const EntryPoint kEntryPoints[] = {
      FAKE_ENTRY(cuInit), FAKE_ENTRY(cuDriverGetVersion), FAKE_ENTRY(cuGetErrorName), FAKE_ENTRY(cuGetErrorString),
      FAKE_ENTRY_V2(cuGetProcAddress), FAKE_ENTRY(cuDeviceGet), FAKE_ENTRY(cuDeviceGetCount),
      FAKE_ENTRY(cuDeviceGetName), FAKE_ENTRY(cuDeviceGetAttribute), FAKE_ENTRY(cuDeviceGetPCIBusId),
      FAKE_ENTRY_V2(cuDeviceTotalMem), FAKE_ENTRY(cuDevicePrimaryCtxRetain),
      FAKE_ENTRY_V2(cuDevicePrimaryCtxRelease), FAKE_ENTRY(cuCtxGetCurrent), FAKE_ENTRY(cuCtxSetCurrent),
      FAKE_ENTRY(cuCtxSynchronize), FAKE_ENTRY(cuCtxGetStreamPriorityRange), FAKE_ENTRY(cuLibraryLoadData),
      FAKE_ENTRY(cuLibraryUnload), FAKE_ENTRY(cuLibraryGetKernel), FAKE_ENTRY(cuLaunchKernel),
      FAKE_ENTRY(cuMemcpyAsync), FAKE_ENTRY_V2(cuMemcpyHtoD), FAKE_ENTRY_V2(cuMemcpyDtoH),
      {"cuMemcpyBatchAsync", (void*)cuMemcpyBatchAsync, 12080}, FAKE_ENTRY_V2(cuMemAlloc), FAKE_ENTRY_V2(cuMemFree),
      FAKE_ENTRY(cuMemHostAlloc), FAKE_ENTRY(cuMemFreeHost), FAKE_ENTRY_V2(cuMemHostRegister),
      FAKE_ENTRY(cuMemHostUnregister), FAKE_ENTRY_V2(cuMemHostGetDevicePointer), FAKE_ENTRY(cuPointerGetAttribute),
      FAKE_ENTRY(cuStreamCreateWithPriority), FAKE_ENTRY_V2(cuStreamDestroy), FAKE_ENTRY(cuStreamWaitEvent),
      FAKE_ENTRY(cuStreamIsCapturing), FAKE_ENTRY(cuStreamSynchronize), FAKE_ENTRY(cuStreamQuery),
      FAKE_ENTRY(cuEventCreate), FAKE_ENTRY(cuEventRecord), FAKE_ENTRY(cuEventQuery), FAKE_ENTRY(cuEventSynchronize),
      FAKE_ENTRY_V2(cuEventDestroy), FAKE_ENTRY(cuEventElapsedTime), FAKE_ENTRY(cuMemsetD8Async),
      FAKE_ENTRY_V2(cuStreamBeginCapture), FAKE_ENTRY(cuStreamEndCapture),
      FAKE_ENTRY(cuThreadExchangeStreamCaptureMode), FAKE_ENTRY(cuGraphInstantiateWithFlags),
      FAKE_ENTRY(cuGraphLaunch), FAKE_ENTRY(cuGraphExecDestroy), FAKE_ENTRY(cuGraphDestroy),
  };
#undef FAKE_ENTRY
#undef FAKE_ENTRY_V2
  return driver_call(Needs::kNothing, [&] {
    require(symbol != nullptr && function != nullptr && flags <= 2);
    *function = nullptr;
    if (status != nullptr) *status = (CUdriverProcAddressQueryResult)1; // there is no function of that name
    const Settings& settings = state().settings;
    for (const EntryPoint& one : kEntryPoints) {
      if (std::strcmp(one.name, symbol) != 0) continue;
      const bool is_batch = one.since == 12080;
      if (is_batch && !settings.has_batch) break;
      if (settings.driver_version < one.since) break;
      if (version < one.since) {
        if (status != nullptr) *status = (CUdriverProcAddressQueryResult)2;  // not in that version
        break;
      }
      *function = is_batch && version >= 13000 ? (void*)batch_of_cuda_13 : one.function;
      if (status != nullptr) *status = (CUdriverProcAddressQueryResult)0;
      return CUDA_SUCCESS;
    }
    return CUDA_ERROR_NOT_FOUND;
  });
}
