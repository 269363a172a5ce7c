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

class Pages {
 public:
  static constexpr size_t kAlignment = 64;  // a cache line

  Pages() = default;
  // Throws std::bad_alloc.
  explicit Pages(size_t bytes)
      : bytes_((bytes + kAlignment - 1) / kAlignment * kAlignment) {
    if (bytes_ == 0) return;
    if (mapped()) {
      void* const data = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (data == MAP_FAILED) throw std::bad_alloc();
      data_ = static_cast<uint8_t*>(data);
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

  // Of mapped memory that may stay nearly unused: the system should not back
  // it with huge pages, all of which would be resident.
  void AvoidHugePages() const {
#ifdef MADV_NOHUGEPAGE
    if (mapped()) madvise(data_, bytes_, MADV_NOHUGEPAGE);
#endif
  }

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  // Below this a page and a system call for each would be the waste.
  static constexpr size_t kMinMappedBytes = 16 << 10;
  bool mapped() const { return bytes_ >= kMinMappedBytes; }

  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_PAGES_H_
