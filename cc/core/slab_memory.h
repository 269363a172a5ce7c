// Where the stripes of a table get the memory of their rows: pieces of large
// regions that all of them share, so that rows can be in huge pages of 2 MiB
// and the table nevertheless takes hardly more memory than its rows.
//
// Why huge pages: with 4 KiB each row of a large table costs a walk through the
// page tables besides its own lines, and each new page a fault. Why shared:
// regions are used up in order, so one page of the table is partly used, not
// one of each of its 64 stripes. The first region has ordinary pages: of a
// small table the pieces are nearly empty.
#ifndef TF_EXT_CC_CORE_SLAB_MEMORY_H_
#define TF_EXT_CC_CORE_SLAB_MEMORY_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "cc/core/pages.h"

namespace tf_ext {

class SlabMemory {
 public:
  using Region = std::shared_ptr<const Pages>;

  struct Piece {
    uint8_t* data;
    Region region;  // keeps the piece
  };

  // Zeroed, aligned to cache lines. Throws std::bad_alloc.
  Piece Take(size_t bytes) {
    bytes = Pages::Aligned(bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    Region region = last_.lock();
    if (region == nullptr || region->bytes() - used_ < bytes) {
      region = std::make_shared<const Pages>(
          std::max(bytes, kRegionBytes),
          region == nullptr ? PageSize::kSmall : PageSize::kHuge);
      last_ = region;
      used_ = 0;
    }
    uint8_t* const data = region->data() + used_;
    used_ += bytes;
    return {data, std::move(region)};
  }

 private:
  // A table's first rows take so much before pages are huge.
  static constexpr size_t kRegionBytes = 32 << 20;

  std::mutex mutex_;
  // Not kept by this: a region goes with the last piece of it.
  std::weak_ptr<const Pages> last_;
  size_t used_ = 0;  // bytes of the last region
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SLAB_MEMORY_H_
