// SPDX-License-Identifier: Apache-2.0
// The core's use of threads: it starts none itself. Callers pass a function
// that runs `fn(0) ... fn(blocks - 1)`, possibly at the same time on several
// threads, and returns when all have returned. Results never depend on how many
// threads there are.
#ifndef TF_EXT_CC_CORE_SUPPORT_PARALLEL_H_
#define TF_EXT_CC_CORE_SUPPORT_PARALLEL_H_

#include <cstdint>
#include <functional>

namespace tf_ext {

using ParallelFor = std::function<void(
    int64_t blocks, const std::function<void(int64_t block)>& fn)>;

inline void SerialFor(int64_t blocks,
                      const std::function<void(int64_t block)>& fn) {
  for (int64_t block = 0; block < blocks; ++block) fn(block);
}

// Whether a ParallelFor is SerialFor, so that sharing the work gains nothing.
inline bool IsSerial(const ParallelFor& parallel_for) {
  const auto* const function = parallel_for.target<decltype(&SerialFor)>();
  return function != nullptr && *function == &SerialFor;
}

// The same, but a single block runs in the caller, without a copy of `fn`,
// which could allocate.
template <typename Fn>
void RunBlocks(int64_t blocks, const ParallelFor& parallel_for, const Fn& fn) {
  if (blocks == 1) {
    fn(0);
  } else {
    parallel_for(blocks, [&fn](int64_t block) { fn(block); });
  }
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SUPPORT_PARALLEL_H_
