// The kernels of cuda/block_copy.cu on the CPU: the same source, one thread after the other.
#pragma once

#include <functional>

#include "memory.hpp"

#define KVPOOL_RESOLVE(address, bytes, alignment, writes) ::fake::resolve(address, bytes, alignment, writes)
#pragma GCC visibility push(hidden)
#include "block_copy.cu"
#pragma GCC visibility pop

namespace [[gnu::visibility("hidden")]] fake {

struct KernelWork {
  int width;
  unsigned grid, block;
  Params params;
};

struct Piece {
  uint64_t dst, src, bytes;
};

inline const std::map<std::string, int>& kernel_widths() {
  static const std::map<std::string, int> widths = {
      {"kvpool_copy_16", 16}, {"kvpool_copy_8", 8}, {"kvpool_copy_4", 4}, {"kvpool_copy_1", 1}};
  return widths;
}

// Returns the error of a launch with wrong parameters, or nullptr. On a GPU, such a launch copies
// garbage or too little.
inline const char* find_mistake(const KernelWork& work) {
  const Params& p = work.params;
  if (p.nbytes < 0 || p.nbytes % work.width != 0) return "nbytes is no multiple of the width";
  if (p.num_pairs < 0 || p.num_planes < 0 || p.num_chunks < 0) return "a negative count";
  if (p.device_pairs == 0 && p.num_pairs > KVPOOL_MAX_PAIRS) return "more pairs than Params holds";
  if (p.nbytes > 0 && (p.chunk_bytes <= 0 || p.chunk_bytes % 16 != 0)) return "chunk_bytes is no multiple of 16";
  const int64_t num_chunks = p.nbytes > 0 ? (p.nbytes + p.chunk_bytes - 1) / p.chunk_bytes : 0;
  if (p.num_chunks != num_chunks) return "num_chunks is not that of nbytes and chunk_bytes";
  if (p.num_planes > 0 && (p.src_planes == 0 || p.dst_planes == 0)) return "no planes";
  if (p.src_blocks < 0 || p.dst_blocks < 0) return "a negative number of blocks";
  if (p.reserved != 0) return "reserved is not zero";
  return nullptr;
}

inline Plane plane_at(uint64_t planes, int32_t index) {
  return *(const Plane*)resolve(planes + sizeof(Plane) * (uint64_t)index, sizeof(Plane), 8, false);
}

// The pairs that are copied.
inline std::vector<std::pair<int64_t, int64_t>> pairs_of(const Params& p) {
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (int32_t i = 0; i < p.num_pairs; ++i) {
    int64_t src, dst;
    if (p.device_pairs != 0) {
      const int64_t* pair = (const int64_t*)resolve(p.device_pairs + 16 * (uint64_t)i, 16, 8, false);
      src = pair[0], dst = pair[1];
    } else {
      src = p.pairs[i].src, dst = p.pairs[i].dst;
    }
    if (0 <= src && src < p.src_blocks && 0 <= dst && dst < p.dst_blocks) pairs.emplace_back(src, dst);
  }
  return pairs;
}

// Returns every copy that the kernel makes, as whole pieces.
inline std::vector<Piece> pieces_of(const KernelWork& work) {
  const Params& p = work.params;
  std::vector<Piece> pieces;
  const auto pairs = pairs_of(p);
  for (int32_t i = 0; i < p.num_planes; ++i) {
    const Plane src = plane_at(p.src_planes, i), dst = plane_at(p.dst_planes, i);
    for (const auto& [from, to] : pairs) {
      pieces.push_back({without_alias(dst.base + (uint64_t)(to * dst.stride)),
                        without_alias(src.base + (uint64_t)(from * src.stride)), (uint64_t)p.nbytes});
    }
  }
  return pieces;
}

// The copies of one launch or batch run in no particular order, so none may write memory that another
// one reads or writes. Two copies of a piece onto itself are harmless.
inline void check_races(const std::vector<Piece>& pieces, const char* what) {
  if (!state().settings.check_races || pieces.size() > 65536) return;
  std::vector<Piece> writes;
  for (const Piece& piece : pieces) {
    if (piece.bytes != 0) writes.push_back(piece);
  }
  const std::vector<Piece> reads = writes;
  std::sort(writes.begin(), writes.end(), [](const Piece& a, const Piece& b) { return a.dst < b.dst; });
  const auto same = [](const Piece& a, const Piece& b) {
    return a.dst == b.dst && a.src == b.src && a.bytes == b.bytes;
  };
  uint64_t widest = 0;
  for (size_t i = 0; i < writes.size(); ++i) {
    widest = std::max(widest, writes[i].bytes);
    if (i == 0 || writes[i - 1].dst + writes[i - 1].bytes <= writes[i].dst) continue;
    if (same(writes[i - 1], writes[i]) && writes[i].src == writes[i].dst) continue;
    return record_violation(std::string(what) + " writes twice: " + describe(writes[i].dst, writes[i].bytes));
  }
  for (const Piece& read : reads) {
    auto write = std::lower_bound(writes.begin(), writes.end(), read.src > widest ? read.src - widest : 0,
                                  [](const Piece& a, uint64_t at) { return a.dst < at; });
    for (; write != writes.end() && write->dst < read.src + read.bytes; ++write) {
      if (write->dst + write->bytes <= read.src || same(*write, read)) continue;
      return record_violation(std::string(what) + " writes what it reads: " + describe(read.src, read.bytes));
    }
  }
}

template <typename Entry>
void run_threads(const KernelWork& work, Entry entry) {
  const Params& p = work.params;
  const bool reverse = state().settings.reverse != 0;
  const uint64_t items = (uint64_t)p.num_pairs * (uint64_t)p.num_planes * (uint64_t)p.num_chunks;
  const uint64_t width = (uint64_t)work.width;
  // CTAs and threads without work are not run. For a small copy, these are most of them.
  const uint64_t elements = ((uint64_t)std::min(p.nbytes, p.chunk_bytes) + width - 1) / width;
  const unsigned ctas = (unsigned)std::min<uint64_t>(work.grid, items);
  const unsigned threads = (unsigned)std::min<uint64_t>(work.block, std::max<uint64_t>(elements, 1));
  gridDim.x = work.grid;
  blockDim.x = work.block;
  for (unsigned cta = 0; cta < ctas; ++cta) {
    blockIdx.x = reverse ? ctas - 1 - cta : cta;
    for (unsigned thread = 0; thread < threads; ++thread) {
      threadIdx.x = reverse ? threads - 1 - thread : thread;
      entry(p);
    }
  }
}

inline void run_kernel(const KernelWork& work) {
  forget_permitted();
  const Params& p = work.params;
  for (int32_t i = 0; i < p.num_planes; ++i) {
    for (const Plane& plane : {plane_at(p.src_planes, i), plane_at(p.dst_planes, i)}) {
      // This is checked even if no pair is valid, because a launcher must never pass pageable memory.
      if (zone_of(without_alias(plane.base)).kind == Kind::kPageable) resolve(plane.base, 1, 1, false);
    }
  }
  const std::vector<Piece> pieces = pieces_of(work);
  check_races(pieces, "kernel");
  switch (work.width) {
    case 16:
      run_threads(work, kvpool_copy_16);
      break;
    case 8:
      run_threads(work, kvpool_copy_8);
      break;
    case 4:
      run_threads(work, kvpool_copy_4);
      break;
    default:
      run_threads(work, kvpool_copy_1);
  }
  state().counters.bytes += (long long)(pieces.size() * (uint64_t)p.nbytes);
}

}  // namespace fake
