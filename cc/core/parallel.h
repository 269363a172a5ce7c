// How the core borrows threads: it starts none of its own. Callers hand in a
// function that runs `fn(0) ... fn(blocks - 1)`, possibly at the same time on
// several threads, and returns when all have returned. Results never depend
// on how many threads there are.
#ifndef TF_EXT_CC_CORE_PARALLEL_H_
#define TF_EXT_CC_CORE_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace tf_ext {

using ParallelFor = std::function<void(
    int64_t blocks, const std::function<void(int64_t block)>& fn)>;

inline void SerialFor(int64_t blocks,
                      const std::function<void(int64_t block)>& fn) {
  for (int64_t block = 0; block < blocks; ++block) fn(block);
}

// The same without handing a single block over, and without a copy of `fn`,
// which could need memory.
template <typename Fn>
void RunBlocks(int64_t blocks, const ParallelFor& parallel_for, const Fn& fn) {
  if (blocks == 1) {
    fn(0);
  } else {
    parallel_for(blocks, [&fn](int64_t block) { fn(block); });
  }
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_PARALLEL_H_
