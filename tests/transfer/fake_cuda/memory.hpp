// The kind of each piece of memory, and the accesses that are allowed. Device memory of the fake is
// host memory.
#pragma once

#include <deque>

#include "state.hpp"

namespace [[gnu::visibility("hidden")]] fake {

// The kind of memory at an address. kUnknown is memory that was never registered with the driver: a
// device tensor of the test, or pageable memory if the setting `strict` is on.
enum class Kind { kUnknown, kFreed, kGuard, kDevice, kHost, kRegistered, kPageable };

struct Range {
  uint64_t end;
  Kind kind;
  CUcontext context = nullptr;
  unsigned flags = 0;
};

using Ranges = std::map<uint64_t, Range>;  // by begin; those of one map do not overlap

constexpr uint64_t kGuardBytes = 4096;
constexpr uint64_t kQuarantineBytes = 256 << 20;
constexpr uint8_t kGuardByte = 0xA5, kFreshByte = 0xCD, kFreedByte = 0xDD;
// The device's address of registered memory when `host_alias` is set. User addresses have 47 or 57 bits.
constexpr uint64_t kAliasBit = 1ull << 62;

struct Memory {
  Ranges allocated;   // by cuMemAlloc and cuMemHostAlloc, without the guards
  Ranges guards;      // before and after every allocation
  Ranges freed;       // kept for a while, so that the addresses are not used again
  Ranges registered;
  Ranges marked;      // as pageable or as device memory, by the test
  Ranges watched;
  std::deque<uint64_t> quarantine;  // keys of `freed`, oldest first
  uint64_t quarantine_bytes = 0, device_bytes = 0;
};

inline Memory& memory() {
  static Memory& one = *new Memory;
  return one;
}

inline bool overlaps(uint64_t begin_a, uint64_t end_a, uint64_t begin_b, uint64_t end_b) {
  return begin_a < end_b && begin_b < end_a;
}

// Returns the range of a map that contains the address, or nullptr. Narrows begin and end to it, or to
// the gap around it.
inline const Range* narrow(const Ranges& ranges, uint64_t address, uint64_t& begin, uint64_t& end) {
  auto next = ranges.upper_bound(address);
  if (next != ranges.end()) end = std::min(end, next->first);
  if (next == ranges.begin()) return nullptr;
  auto found = std::prev(next);
  if (address < found->second.end) {
    begin = std::max(begin, found->first);
    end = std::min(end, found->second.end);
    return &found->second;
  }
  begin = std::max(begin, found->second.end);
  return nullptr;
}

inline bool overlaps_any(const Ranges& ranges, uint64_t begin, uint64_t end) {
  auto next = ranges.lower_bound(begin);
  if (next != ranges.end() && next->first < end) return true;
  return next != ranges.begin() && std::prev(next)->second.end > begin;
}

// The largest stretch around an address that is all of one kind.
struct Zone {
  uint64_t begin, end;
  Kind kind;
};

inline Zone zone_of(uint64_t address) {
  const Memory& m = memory();
  Zone zone{0, kAliasBit, Kind::kUnknown};
  for (const Ranges* ranges : {&m.freed, &m.allocated, &m.guards, &m.registered, &m.marked}) {
    if (const Range* range = narrow(*ranges, address, zone.begin, zone.end)) {
      zone.kind = range->kind;
      return zone;
    }
  }
  if (state().settings.strict) zone.kind = Kind::kPageable;
  return zone;
}

inline std::string describe(uint64_t address, uint64_t bytes) {
  static const char* const kNames[] = {"unknown", "freed", "guard", "device", "pinned", "registered", "pageable"};
  char text[120];
  std::snprintf(text, sizeof text, "%llu bytes at 0x%llx (%s memory)", (unsigned long long)bytes,
                (unsigned long long)address, kNames[(int)zone_of(address & ~kAliasBit).kind]);
  return text;
}

// Returns the CPU's address for a device address.
inline uint64_t without_alias(uint64_t address) {
  const bool is_alias = (address & kAliasBit) != 0 && state().settings.host_alias != 0;
  return is_alias && zone_of(address ^ kAliasBit).kind == Kind::kRegistered ? address ^ kAliasBit : address;
}

// -------------------------------------------------------------------------------------------------- copies by the DMA

// Checks one side of a copy, at the call. A copy engine knows memory by the allocation or registration it lies in: no
// copy may reach over the end of one. Returns the address for the CPU.
inline uint64_t check_dma(uint64_t address, uint64_t bytes, bool* is_pageable) {
  const uint64_t begin = without_alias(address), end = begin + bytes;
  require(begin >= 65536 && begin < kAliasBit && end <= kAliasBit);  // the first pages are never mapped
  *is_pageable = false;
  for (uint64_t at = begin; at < end || at == begin;) {
    const Zone zone = zone_of(at);
    if (zone.kind == Kind::kFreed || zone.kind == Kind::kGuard) {
      record_violation("copy of " + describe(begin, bytes) + " touches freed memory or what is around an allocation");
      refuse(CUDA_ERROR_INVALID_VALUE);
    }
    const bool bounded = zone.kind == Kind::kDevice || zone.kind == Kind::kHost || zone.kind == Kind::kRegistered;
    require(!bounded || (zone.begin <= begin && end <= zone.end));
    if (zone.kind == Kind::kPageable) *is_pageable = true;
    at = zone.end;
  }
  return begin;
}

// -------------------------------------------------------------------------------------------- accesses by the kernels

// Stretches that the running kernel may touch, as it addresses them, by the pages last touched: without these, every
// access would search the maps.
struct Permitted {
  uint64_t begin = 0, end = 0, alias = 0;
};
inline Permitted permitted[1024];

inline Permitted& permitted_at(uint64_t address) { return permitted[address / 4096 % 1024]; }

inline void forget_permitted() {
  for (Permitted& one : permitted) one = Permitted{};
}

[[noreturn]] inline void fault(CUresult result, uint64_t address, uint64_t bytes, const char* what) {
  throw DeviceFault{result, std::string(what) + ": " + describe(address, bytes)};
}

// Returns the range that a thread of a kernel is about to touch, or throws the error with which a GPU
// would stop.
inline void* resolve(uint64_t address, uint64_t bytes, uint64_t alignment, bool writes) {
  const char* const what = writes ? "store to" : "load from";
  if (address % alignment != 0) fault(CUDA_ERROR_MISALIGNED_ADDRESS, address, bytes, what);
  const Permitted& known = permitted_at(address);
  if (known.begin <= address && address < known.end && bytes <= known.end - address) {
    return (void*)(address ^ known.alias);
  }
  const Settings& settings = state().settings;
  const uint64_t begin = without_alias(address), alias = begin ^ address;
  if (begin < 65536 || begin >= kAliasBit || begin + bytes > kAliasBit) {  // the first pages are never mapped
    fault(CUDA_ERROR_ILLEGAL_ADDRESS, address, bytes, what);
  }
  for (uint64_t at = begin; at < begin + bytes || at == begin;) {
    const Zone zone = zone_of(at);
    const bool whole = zone.begin <= begin && begin + bytes <= zone.end;
    bool allowed = true;
    switch (zone.kind) {
      case Kind::kFreed:
      case Kind::kGuard:
        record_violation(std::string(what) + " " + describe(at, bytes));
        allowed = false;
        break;
      case Kind::kDevice:
        allowed = whole;
        break;
      case Kind::kRegistered:
        allowed = settings.host_alias == 0 || alias != 0;
        break;
      case Kind::kPageable:
        allowed = settings.coherent != 0;
        break;
      case Kind::kHost:
      case Kind::kUnknown:
        break;
    }
    if (!allowed) fault(CUDA_ERROR_ILLEGAL_ADDRESS, address, bytes, what);
    if (whole) permitted_at(address) = {zone.begin | alias, zone.end | alias, alias};
    at = zone.end;
  }
  return (void*)begin;
}

// -------------------------------------------------------------------------------------------------------- allocations

inline bool guards_are_whole(uint64_t begin, uint64_t end) {
  const uint8_t* const before = (const uint8_t*)(begin - kGuardBytes);
  const uint8_t* const after = (const uint8_t*)end;
  for (uint64_t i = 0; i < kGuardBytes; ++i) {
    if (before[i] != kGuardByte || after[i] != kGuardByte) return false;
  }
  return true;
}

inline uint64_t allocate(uint64_t bytes, Kind kind, CUcontext context, unsigned flags) {
  require(bytes != 0);
  require(bytes < (1ull << 40), CUDA_ERROR_OUT_OF_MEMORY);
  Settings& settings = state().settings;
  if (is_due(settings.fail_alloc)) refuse(CUDA_ERROR_OUT_OF_MEMORY);
  Memory& m = memory();
  if (kind == Kind::kDevice) {
    require(m.device_bytes + bytes <= (uint64_t)settings.total_memory, CUDA_ERROR_OUT_OF_MEMORY);
  }
  const uint64_t whole = (bytes + kGuardBytes - 1) / kGuardBytes * kGuardBytes + 2 * kGuardBytes;
  uint8_t* const start = (uint8_t*)std::aligned_alloc(kGuardBytes, whole);
  require(start != nullptr, CUDA_ERROR_OUT_OF_MEMORY);
  const uint64_t begin = (uint64_t)start + kGuardBytes, end = begin + bytes;
  std::memset(start, kGuardByte, whole);
  std::memset((void*)begin, kFreshByte, bytes);
  m.allocated[begin] = {end, kind, context, flags};
  m.guards[begin - kGuardBytes] = {begin, Kind::kGuard};
  m.guards[end] = {end + kGuardBytes, Kind::kGuard};
  if (kind == Kind::kDevice) m.device_bytes += bytes;
  return begin;
}

// Moves a freed range into quarantine. The oldest ranges leave it to make room.
inline void release(uint64_t begin) {
  Memory& m = memory();
  const Range range = m.allocated.at(begin);
  if (!guards_are_whole(begin, range.end)) {
    record_violation("written around the allocation of " + describe(begin, range.end - begin));
  }
  if (range.kind == Kind::kDevice) m.device_bytes -= range.end - begin;
  std::memset((void*)begin, kFreedByte, range.end - begin);
  m.allocated.erase(begin);
  m.guards.erase(begin - kGuardBytes);
  m.guards.erase(range.end);
  m.freed[begin - kGuardBytes] = {range.end + kGuardBytes, Kind::kFreed};
  m.quarantine.push_back(begin - kGuardBytes);
  m.quarantine_bytes += range.end - begin;
  while (m.quarantine_bytes > kQuarantineBytes && m.quarantine.size() > 1) {
    auto oldest = m.freed.find(m.quarantine.front());
    m.quarantine.pop_front();
    m.quarantine_bytes -= oldest->second.end - oldest->first - 2 * kGuardBytes;
    std::free((void*)oldest->first);
    m.freed.erase(oldest);
  }
}

inline void check_all_guards() {
  Memory& m = memory();
  for (const auto& [begin, range] : m.allocated) {
    if (guards_are_whole(begin, range.end)) continue;
    record_violation("written around the allocation of " + describe(begin, range.end - begin));
    std::memset((void*)(begin - kGuardBytes), kGuardByte, kGuardBytes); // reported once
    std::memset((void*)range.end, kGuardByte, kGuardBytes);
  }
}

inline long long count_allocations(Kind kind) {
  long long count = 0;
  for (const auto& one : memory().allocated) count += one.second.kind == kind;
  return count;
}

}  // namespace fake
