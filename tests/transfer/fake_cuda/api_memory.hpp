// Entry points for memory and its attributes.
#pragma once

#include "queue.hpp"

using namespace fake;

// Returns the allocation or registration that contains an address, as an entry of its map.
static const Range* find_range(const Ranges& ranges, uint64_t address, uint64_t* begin) {
  auto next = ranges.upper_bound(address);
  if (next == ranges.begin()) return nullptr;
  auto found = std::prev(next);
  *begin = found->first;
  return address < found->second.end ? &found->second : nullptr;
}

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* pointer, size_t bytes) {
  return driver_call(Needs::kContext, [&] {
    require_no_capture();
    require(pointer != nullptr);
    *pointer = allocate(bytes, Kind::kDevice, current_handle, 0);
    return CUDA_SUCCESS;
  });
}

// Waits for all work, as the real driver does. A caller may rely on that.
CUresult cuMemFree_v2(CUdeviceptr pointer) {
  return driver_call(Needs::kContext, [&] {
    require_no_capture();
    if (pointer == 0) return CUDA_SUCCESS;
    auto found = memory().allocated.find(pointer);
    require(found != memory().allocated.end() && found->second.kind == Kind::kDevice);
    run_all();
    note_waited();
    release(pointer);
    return state().sticky;
  });
}

CUresult cuMemHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  return driver_call(Needs::kContext, [&] {
    require_no_capture();
    require(pointer != nullptr && flags <= 7);
    *pointer = (void*)allocate(bytes, Kind::kHost, current_handle, flags);
    return CUDA_SUCCESS;
  });
}

CUresult cuMemFreeHost(void* pointer) {
  return driver_call(Needs::kContext, [&] {
    require_no_capture();
    if (pointer == nullptr) return CUDA_SUCCESS;
    auto found = memory().allocated.find((uint64_t)pointer);
    require(found != memory().allocated.end() && found->second.kind == Kind::kHost);
    finish_work_on(found->first, found->second.end, "pinned memory is freed");
    release((uint64_t)pointer);
    return state().sticky;
  });
}

CUresult cuMemHostRegister_v2(void* pointer, size_t bytes, unsigned int flags) {
  return driver_call(Needs::kContext, [&] {
    require_no_capture();
    require(pointer != nullptr && bytes != 0 && flags <= 15);
    const Settings& settings = state().settings;
    require(settings.fail_register == 0, (CUresult)settings.fail_register);
    require(settings.register_limit == 0 || bytes <= (size_t)settings.register_limit, CUDA_ERROR_OUT_OF_MEMORY);
    Memory& m = memory();
    const uint64_t begin = (uint64_t)pointer, end = begin + bytes;
    require(!overlaps_any(m.registered, begin, end), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    for (const Ranges* others : {&m.allocated, &m.guards, &m.freed}) require(!overlaps_any(*others, begin, end));
    m.registered[begin] = {end, Kind::kRegistered, current_handle, flags};
    return CUDA_SUCCESS;
  });
}

CUresult cuMemHostUnregister(void* pointer) {
  return driver_call(Needs::kContext, [&] {
    require_no_capture();
    auto found = memory().registered.find((uint64_t)pointer);
    require(found != memory().registered.end(), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    finish_work_on(found->first, found->second.end, "memory is unregistered");
    memory().registered.erase((uint64_t)pointer);
    return state().sticky;
  });
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr* device_pointer, void* pointer, unsigned int flags) {
  return driver_call(Needs::kContext, [&] {
    require(device_pointer != nullptr && flags == 0);
    const uint64_t address = (uint64_t)pointer;
    const Kind kind = zone_of(address).kind;
    require(kind == Kind::kRegistered || kind == Kind::kHost);
    const bool has_alias = state().settings.host_alias != 0 && kind == Kind::kRegistered;
    *device_pointer = has_alias ? address | kAliasBit : address;
    return CUDA_SUCCESS;
  });
}

CUresult cuPointerGetAttribute(void* data, CUpointer_attribute attribute, CUdeviceptr pointer) {
  return driver_call(Needs::kInit, [&] {
    require(data != nullptr);
    const Memory& m = memory();
    const uint64_t address = without_alias(pointer);
    uint64_t begin = address;
    const Range* range = nullptr;
    for (const Ranges* ranges : {&m.allocated, &m.registered, &m.marked}) {
      if (range == nullptr) range = find_range(*ranges, address, &begin);
    }
    require(range != nullptr && range->kind != Kind::kPageable);
    const bool on_device = range->kind == Kind::kDevice;
    const bool has_alias = state().settings.host_alias != 0 && range->kind == Kind::kRegistered;
    const Context* context = find_context(range->context);
    switch ((int)attribute) {
      case 1: // the context
        *(CUcontext*)data = range->context;
        break;
      case 2: // the type of memory: 1 for the host, 2 for the device
        *(unsigned*)data = on_device ? 2 : 1;
        break;
      case 3:  // the address on the device
        *(CUdeviceptr*)data = has_alias ? address | kAliasBit : address;
        break;
      case 4:  // ... on the host
        require(!on_device);
        *(void**)data = (void*)address;
        break;
      case 8:  // managed
        *(unsigned*)data = 0;
        break;
      case 9:  // the device
        *(int*)data = context == nullptr ? 0 : context->device;
        break;
      case 11: // its first address
        *(CUdeviceptr*)data = begin;
        break;
      case 12: // its size
        *(size_t*)data = (size_t)(range->end - begin);
        break;
      case 13:  // mapped
        *(unsigned*)data = 1;
        break;
      default:
        refuse(CUDA_ERROR_NOT_SUPPORTED);
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
