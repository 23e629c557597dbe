// Copies cache blocks between two block stores. Params is the ABI between these kernels and the
// launcher in Rust.
//
// A store is a number of planes (say: K of layer 0, V of layer 0, K of layer 1, ...); a block has one
// piece of `nbytes` contiguous bytes in each of them, at `base + id * stride`. A launch copies every
// plane's piece of every pair of blocks, cut into chunks: one work item is one chunk, and a CTA copies
// one item at a time.
//
// The source is compiled twice: by NVRTC (cuda/build_fatbin.py; no headers there) and, with
// KVPOOL_EMULATE, as plain C++17 by the tests' fake driver, which runs the threads one after the other:
// no barriers and no shared memory here.
#ifdef __CUDACC_RTC__
typedef unsigned char uint8_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;
#define KVPOOL_OFFSET_OF(type, member) __INTADDR__(&((type*)0)->member)
#else
#include <stddef.h>
#include <stdint.h>
#define KVPOOL_OFFSET_OF(type, member) offsetof(type, member)
#endif

#ifdef KVPOOL_EMULATE
// The harness may define KVPOOL_RESOLVE(address, bytes, alignment, writes) before it includes this
// file: it gets every range of memory that a thread is about to touch and returns where the range lies
// for the CPU.
#ifndef KVPOOL_RESOLVE
#define KVPOOL_RESOLVE(address, bytes, alignment, writes) ((void)(bytes), (void*)(address))
#endif
#define KVPOOL_UNROLL
#define __global__
#define __device__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(threads)
struct EmulatedIndex {
  uint32_t x;
};
static EmulatedIndex threadIdx, blockIdx, blockDim, gridDim;
#else
#define KVPOOL_RESOLVE(address, bytes, alignment, writes) ((void*)(address))
#define KVPOOL_UNROLL _Pragma("unroll")
#endif

#define KVPOOL_MAX_PAIRS 480  // by value, within the 4096 bytes of parameters that every GPU and driver takes

struct Plane {
  uint64_t base;   // address of block 0's piece
  int64_t stride;  // bytes from one block's piece to the next one's
};

struct Pair {
  int32_t src, dst;
};

struct Params {
  uint64_t src_planes, dst_planes;  // device-visible addresses of Plane[num_planes] each
  int64_t nbytes;                   // bytes of a piece, a multiple of the kernel's access width
  int64_t chunk_bytes;              // bytes a CTA copies at a time, a multiple of 16
  uint64_t device_pairs;            // 0: `pairs` below; else device address of int64[num_pairs][2]
  int64_t src_blocks, dst_blocks;   // block ids from 0 to these, exclusive
  uint64_t status;                  // device-visible uint32_t, set to 1 when a pair was out of range; 0: none
  int32_t num_planes, num_pairs, num_chunks, reserved;
  Pair pairs[KVPOOL_MAX_PAIRS];
};

// The launcher in Rust uses this layout.
static_assert(sizeof(Plane) == 16 && KVPOOL_OFFSET_OF(Plane, stride) == 8, "Plane");
static_assert(KVPOOL_OFFSET_OF(Params, src_planes) == 0 &&
              KVPOOL_OFFSET_OF(Params, dst_planes) == 8, "Params");
static_assert(KVPOOL_OFFSET_OF(Params, nbytes) == 16 &&
              KVPOOL_OFFSET_OF(Params, chunk_bytes) == 24, "Params");
static_assert(KVPOOL_OFFSET_OF(Params, device_pairs) == 32, "Params");
static_assert(KVPOOL_OFFSET_OF(Params, src_blocks) == 40 &&
              KVPOOL_OFFSET_OF(Params, dst_blocks) == 48, "Params");
static_assert(KVPOOL_OFFSET_OF(Params, status) == 56 &&
              KVPOOL_OFFSET_OF(Params, num_planes) == 64, "Params");
static_assert(KVPOOL_OFFSET_OF(Params, num_pairs) == 68 &&
              KVPOOL_OFFSET_OF(Params, num_chunks) == 72, "Params");
static_assert(KVPOOL_OFFSET_OF(Params, pairs) == 80 && sizeof(Pair) == 8, "Params");
static_assert(sizeof(Params) == 80 + 8 * KVPOOL_MAX_PAIRS && sizeof(Params) == 3920, "Params");

struct alignas(16) Bytes16 {
  uint32_t x, y, z, w;
};

// Loads and stores. A copied byte is never read again by this kernel: the 16-byte accesses, which cover
// whole sectors, leave L1 first. Narrow accesses of misaligned pieces share sectors with their
// neighbours, so those keep it. The assembly is volatile with a memory clobber: source and destination
// may be the same memory (a pair (i, i)), so the compiler may neither move a load across a store nor
// turn it into one through the non-coherent cache.
#ifdef KVPOOL_EMULATE
template <typename T>
static inline T load(const T* from) {
  return *from;
}
template <typename T>
static inline void store(T* to, T value) {
  *to = value;
}
#else
__device__ __forceinline__ Bytes16 load(const Bytes16* from) {
  Bytes16 value;
  asm volatile("ld.global.L1::evict_first.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "l"(from)
               : "memory");
  return value;
}
__device__ __forceinline__ void store(Bytes16* to, Bytes16 value) {
  asm volatile("st.global.L1::evict_first.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(value.x),
               "r"(value.y), "r"(value.z), "r"(value.w)
               : "memory");
}
__device__ __forceinline__ uint64_t load(const uint64_t* from) {
  uint64_t value;
  asm volatile("ld.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store(uint64_t* to, uint64_t value) {
  asm volatile("st.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}
__device__ __forceinline__ uint32_t load(const uint32_t* from) {
  uint32_t value;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ __forceinline__ void store(uint32_t* to, uint32_t value) {
  asm volatile("st.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ __forceinline__ uint8_t load(const uint8_t* from) {
  uint32_t value;  // PTX has no 8-bit registers
  asm volatile("ld.global.u8 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return (uint8_t)value;
}
__device__ __forceinline__ void store(uint8_t* to, uint8_t value) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(to), "r"((uint32_t)value) : "memory");
}
#endif

template <typename T>
__device__ __forceinline__ const T* readable(uint64_t address, uint32_t count) {
  return (const T*)KVPOOL_RESOLVE(address, (uint64_t)count * sizeof(T), alignof(T), false);
}

template <typename T>
__device__ __forceinline__ T* writable(uint64_t address, uint32_t count) {
  return (T*)KVPOOL_RESOLVE(address, (uint64_t)count * sizeof(T), alignof(T), true);
}

// Copies `count` elements with the threads of this CTA, whole warps. A warp takes UNROLL rows of 32
// elements that follow one another: a thread has one address, and constant distances from it. Each has
// its loads under way before its first store, also at the end of a chunk: a piece of a few KiB is
// nothing but end.
template <typename T, uint32_t UNROLL>
__device__ __forceinline__ void copy_chunk(uint64_t src, uint64_t dst, uint32_t count) {
  constexpr uint32_t WARP = 32;
  uint32_t i = threadIdx.x / WARP * (WARP * UNROLL) + threadIdx.x % WARP;
  if (i >= count) return;
  const T* from = readable<T>(src, count);
  T* to = writable<T>(dst, count);
  for (; i < count; i += UNROLL * blockDim.x) {
    T values[UNROLL];
    KVPOOL_UNROLL
    for (uint32_t u = 0; u < UNROLL; ++u) {
      if (i + u * WARP < count) values[u] = load(from + i + u * WARP);
    }
    KVPOOL_UNROLL
    for (uint32_t u = 0; u < UNROLL; ++u) {
      if (i + u * WARP < count) store(to + i + u * WARP, values[u]);
    }
  }
}

// Reads the ids of pair `index`. Returns false if the pair is not copied. `reports`: this thread reports
// errors to the host.
__device__ __forceinline__ bool find_pair(const Params& params, uint32_t index, bool reports, int64_t& src,
                                          int64_t& dst) {
  if (params.device_pairs != 0) {
    const uint64_t* pair = readable<uint64_t>(params.device_pairs + 2 * sizeof(uint64_t) * index, 2);
    src = (int64_t)load(pair);
    dst = (int64_t)load(pair + 1);
  } else {
    src = params.pairs[index].src;
    dst = params.pairs[index].dst;
  }
  // A hole: a captured graph is replayed with a fixed number of pairs.
  if (src == -1 || dst == -1) return false;
  if (src >= 0 && src < params.src_blocks && dst >= 0 && dst < params.dst_blocks) return true;
  if (reports && params.status != 0) *(volatile uint32_t*)writable<uint32_t>(params.status, 1) = 1;
  return false;
}

__device__ __forceinline__ Plane load_plane(uint64_t planes, uint32_t index) {
  const uint64_t* plane = readable<uint64_t>(planes + sizeof(Plane) * index, 2);
  return {load(plane), (int64_t)load(plane + 1)};
}

// The way of a CTA through the work items, from its own index on in steps of the grid. Items count
// through the chunks of a piece first, then the planes, then the pairs. The position is kept as three
// digits and the step is added digit by digit, with carries: a division per item would cost more than
// the copy of a small piece.
struct Item {
  uint32_t pair, plane, chunk;
};

__device__ __forceinline__ Item item_at(uint32_t index, uint32_t num_planes, uint32_t num_chunks) {
  const uint32_t piece = index / num_chunks;
  return {piece / num_planes, piece % num_planes, index % num_chunks};
}

__device__ __forceinline__ void advance(Item& item, const Item& step, uint32_t num_planes,
                                        uint32_t num_chunks) {
  // Digits are below their counts, and counts fit in 31 bits: no sum here wraps.
  item.chunk += step.chunk;
  const uint32_t chunk_carry = item.chunk >= num_chunks ? 1 : 0;
  if (chunk_carry) item.chunk -= num_chunks;
  item.plane += step.plane + chunk_carry;
  const uint32_t plane_carry = item.plane >= num_planes ? 1 : 0;
  if (plane_carry) item.plane -= num_planes;
  item.pair += step.pair + plane_carry;
}

template <typename T, uint32_t UNROLL>
__device__ __forceinline__ void copy_blocks(const Params& params) {
  if (params.num_pairs <= 0 || params.num_planes <= 0 || params.num_chunks <= 0) return;
  const uint32_t num_pairs = params.num_pairs, num_planes = params.num_planes, num_chunks = params.num_chunks;
  const Item step = item_at(gridDim.x, num_planes, num_chunks);
  for (Item item = item_at(blockIdx.x, num_planes, num_chunks); item.pair < num_pairs;
       advance(item, step, num_planes, num_chunks)) {
    int64_t src_block, dst_block;
    const bool reports = threadIdx.x == 0 && item.plane == 0 && item.chunk == 0;
    if (!find_pair(params, item.pair, reports, src_block, dst_block)) continue;
    const Plane src = load_plane(params.src_planes, item.plane);
    const Plane dst = load_plane(params.dst_planes, item.plane);
    const int64_t offset = (int64_t)item.chunk * params.chunk_bytes;
    const int64_t left = params.nbytes - offset;
    const int64_t bytes = left < params.chunk_bytes ? left : params.chunk_bytes;
    copy_chunk<T, UNROLL>(src.base + (uint64_t)(src_block * src.stride + offset),
                          dst.base + (uint64_t)(dst_block * dst.stride + offset),
                          (uint32_t)(bytes / (int64_t)sizeof(T)));
  }
}

// The launcher takes the widest access that divides the base and stride of every plane and the bytes of
// a piece. 512 threads at most: that leaves 128 registers to each, and nothing is spilled
// (build_fatbin.py makes sure).
extern "C" {
__global__ void __launch_bounds__(512) kvpool_copy_16(const __grid_constant__ Params params) {
  copy_blocks<Bytes16, 4>(params);
}
__global__ void __launch_bounds__(512) kvpool_copy_8(const __grid_constant__ Params params) {
  copy_blocks<uint64_t, 4>(params);
}
__global__ void __launch_bounds__(512) kvpool_copy_4(const __grid_constant__ Params params) {
  copy_blocks<uint32_t, 4>(params);
}
__global__ void __launch_bounds__(512) kvpool_copy_1(const __grid_constant__ Params params) {
  copy_blocks<uint8_t, 4>(params);
}
}
