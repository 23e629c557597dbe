// Entry points: initialisation, devices, contexts, libraries.
#pragma once

#include "queue.hpp"

using namespace fake;

static CUresult get_result_text(CUresult error, const char** text, bool name) {
  if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const ResultText* found = result_text(error);
  *text = found == nullptr ? nullptr : name ? found->name : found->text;
  return found == nullptr ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static Context& context_of(CUdevice device) {
  require(0 <= device && device < state().settings.devices, CUDA_ERROR_INVALID_DEVICE);
  auto& contexts = state().contexts;
  while (contexts.size() <= (size_t)device) {
    auto context = std::make_unique<Context>();
    context->handle = new_handle<CUcontext>();
    context->device = (CUdevice)contexts.size();
    context->legacy.reset(new Stream{(CUstream)1, context.get(), true});
    context->per_thread.reset(new Stream{(CUstream)2, context.get(), true});
    contexts.push_back(std::move(context));
  }
  return *contexts[(size_t)device];
}

extern "C" {

CUresult cuInit(unsigned int flags) {
  return driver_call(Needs::kNothing, [&] {
    const Settings& settings = state().settings;
    require(flags == 0);
    require(settings.fail_init == 0, (CUresult)settings.fail_init);
    require(settings.no_device == 0, CUDA_ERROR_NO_DEVICE);
    state().initialised = true;
    return CUDA_SUCCESS;
  });
}

CUresult cuDriverGetVersion(int* version) {
  return driver_call(Needs::kNothing, [&] {
    require(version != nullptr);
    *version = (int)state().settings.driver_version;
    return CUDA_SUCCESS;
  });
}

CUresult cuGetErrorName(CUresult error, const char** text) { return get_result_text(error, text, true); }

CUresult cuGetErrorString(CUresult error, const char** text) { return get_result_text(error, text, false); }

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  return driver_call(Needs::kInit, [&] {
    require(device != nullptr);
    *device = context_of(ordinal).device;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return driver_call(Needs::kInit, [&] {
    require(count != nullptr);
    *count = (int)state().settings.devices;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  return driver_call(Needs::kInit, [&] {
    context_of(device);
    require(name != nullptr && length > 0);
    std::snprintf(name, (size_t)length, "kvpool fake GPU %d", device);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  return driver_call(Needs::kInit, [&] {
    context_of(device);
    require(id != nullptr && length >= 13);
    std::snprintf(id, (size_t)length, "0000:%02x:00.0", (unsigned)(device + 1) & 0xff);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  return driver_call(Needs::kInit, [&] {
    context_of(device);
    require(bytes != nullptr);
    *bytes = (size_t)state().settings.total_memory;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  return driver_call(Needs::kInit, [&] {
    context_of(device);
    require(value != nullptr && 0 < (int)attribute && (int)attribute < 160);
    const Settings& s = state().settings;
    const std::map<int, long long> values = {
        {1, 1024},             // threads of a block
        {2, 1024},             // ... in x
        {5, 0x7fffffff},       // blocks of a grid in x
        {8, 49152},            // bytes of shared memory
        {10, 32},              // threads of a warp
        {12, 65536},           // registers
        {16, s.sms},           // multiprocessors
        {19, 1},               // maps host memory
        {31, 1},               // runs kernels at the same time
        {33, device + 1},      // number of the PCI bus
        {39, 2048},            // threads of a multiprocessor
        {40, 3},               // copy engines
        {41, 1},               // unified addresses
        {75, s.compute_major}, {76, s.compute_minor},
        {78, 1},               // priorities of streams
        {83, 1},               // managed memory
        {88, s.coherent},      // reads pageable memory
        {91, !s.host_alias},   // registered memory has the host's addresses
        {99, 1},               // registers host memory
        {100, s.coherent},     // ... through the tables of the host
        {134, s.numa_id},      // the host's NUMA node
    };
    const auto found = values.find((int)attribute);
    *value = found == values.end() ? 0 : (int)found->second;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  return driver_call(Needs::kInit, [&] {
    require(context != nullptr);
    Context& found = context_of(device);
    ++found.references;
    *context = found.handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return driver_call(Needs::kInit, [&] {
    Context& context = context_of(device);
    require(context.references > 0, CUDA_ERROR_INVALID_CONTEXT);
    if (context.references == 1) {
      if (count_queued() != 0) record_violation("the context is released while work waits");
      run_all();
    }
    --context.references;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  return driver_call(Needs::kInit, [&] {
    require(context != nullptr);
    *context = current_handle;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSetCurrent(CUcontext context) {
  return driver_call(Needs::kInit, [&] {
    require(context == nullptr || find_context(context) != nullptr, CUDA_ERROR_INVALID_CONTEXT);
    current_handle = context;
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxSynchronize(void) {
  return driver_call(Needs::kContext, [&] {
    require_no_capture();
    ++state().counters.synchronizations;
    run_all();
    note_waited();
    return state().sticky;
  });
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  return driver_call(Needs::kContext, [&] {
    if (least != nullptr) *least = 0;
    if (greatest != nullptr) *greatest = -5;
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, CUjit_option*, void**, unsigned int num_jit_options,
                           CUlibraryOption*, void**, unsigned int num_library_options) {
  return driver_call(Needs::kInit, [&] {
    require(library != nullptr && code != nullptr);
    require(num_jit_options == 0 && num_library_options == 0, CUDA_ERROR_NOT_SUPPORTED);
    const Settings& settings = state().settings;
    require(settings.fail_library == 0, (CUresult)settings.fail_library);
    uint32_t magic;
    std::memcpy(&magic, code, sizeof magic);
    require(magic == 0xBA55ED50u || magic == 0x464C457Fu, CUDA_ERROR_INVALID_IMAGE);  // a fat binary, or a cubin
    *library = new_handle<CUlibrary>();
    for (const auto& [name, width] : kernel_widths()) {
      const CUkernel kernel = new_handle<CUkernel>();
      state().libraries[*library].kernels[name] = kernel;
      state().kernels[kernel] = {*library, width};
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryUnload(CUlibrary library) {
  return driver_call(Needs::kInit, [&] {
    auto found = state().libraries.find(library);
    require(found != state().libraries.end(), CUDA_ERROR_INVALID_HANDLE);
    bool waits = false;
    for (Stream* stream : all_streams()) {
      for (const OperationPtr& one : stream->queue) waits |= std::holds_alternative<KernelWork>(one->work);
    }
    if (waits) record_violation("the library is unloaded while kernels wait");
    run_all();
    for (const auto& one : found->second.kernels) state().kernels.erase(one.second);
    state().libraries.erase(found);
    return CUDA_SUCCESS;
  });
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return driver_call(Needs::kInit, [&] {
    require(kernel != nullptr && name != nullptr);
    auto found = state().libraries.find(library);
    require(found != state().libraries.end(), CUDA_ERROR_INVALID_HANDLE);
    auto entry = found->second.kernels.find(name);
    require(entry != found->second.kernels.end(), CUDA_ERROR_NOT_FOUND);
    *kernel = entry->second;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
