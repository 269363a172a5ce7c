// Zeroed memory for indexes and rows, taken from and given back to the kernel.
//
// Not malloc: its big blocks end up on a heap that keeps what was freed, and
// a table that has grown leaves many blocks of just the wrong size behind.
// Mapped memory costs nothing until it is touched and is gone when freed.
#ifndef TF_EXT_CC_CORE_PAGES_H_
#define TF_EXT_CC_CORE_PAGES_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace tf_ext {

// What backs mapped memory, as far as the system can: pages of 4 KiB, for
// memory that may stay nearly unused, as a huge page is resident whole; or huge
// ones of 2 MiB, where whole ones fit.
enum class PageSize { kSmall, kHuge };

class Pages {
 public:
  static constexpr size_t kAlignment = 64;  // a cache line
  static constexpr size_t kHugePageBytes = 2 << 20;

  // To the next multiple of the alignment.
  static size_t Aligned(size_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  Pages() = default;
  // Throws std::bad_alloc.
  Pages(size_t bytes, PageSize page_size) : bytes_(Aligned(bytes)) {
    if (bytes_ == 0) return;
    if (mapped()) {
      Map(page_size);
    } else {
      data_ = static_cast<uint8_t*>(std::aligned_alloc(kAlignment, bytes_));
      if (data_ == nullptr) throw std::bad_alloc();
      std::memset(data_, 0, bytes_);
    }
  }
  ~Pages() {
    if (data_ == nullptr) return;
    if (mapped()) {
      munmap(data_, bytes_);
    } else {
      std::free(data_);
    }
  }
  Pages(Pages&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        bytes_(std::exchange(other.bytes_, 0)) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  // Below this a page and a system call for each would be the waste.
  static constexpr size_t kMinMappedBytes = 16 << 10;
  bool mapped() const { return bytes_ >= kMinMappedBytes; }

  void Map(PageSize page_size) {
    const bool huge = page_size == PageSize::kHuge && bytes_ >= kHugePageBytes;
    // Huge pages begin at multiples of their size.
    const size_t spare = huge ? kHugePageBytes : 0;
    void* const mapping =
        mmap(nullptr, bytes_ + spare, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(mapping);
    // Advice: on a system that does not take it, work is slower.
    if (huge) {
      const size_t past = reinterpret_cast<uintptr_t>(data_) % kHugePageBytes;
      const size_t before = (kHugePageBytes - past) % kHugePageBytes;
      data_ += before;
      if (before > 0) munmap(mapping, before);
      if (before < spare) munmap(data_ + bytes_, spare - before);
      madvise(data_, bytes_, MADV_HUGEPAGE);
    } else if (page_size == PageSize::kSmall) {
      madvise(data_, bytes_, MADV_NOHUGEPAGE);
    }
  }

  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_PAGES_H_
