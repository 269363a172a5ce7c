// SPDX-License-Identifier: Apache-2.0
// Zeroed memory for indexes and rows, mapped from the kernel.
//
// malloc is not used, because its heap keeps freed blocks, and a growing table
// frees many blocks of sizes that are not needed again. Mapped memory costs
// nothing until it is touched, and is returned to the system when freed. Small
// blocks are allocated from the heap nevertheless.
#ifndef TF_EXT_CC_CORE_TABLE_PAGES_H_
#define TF_EXT_CC_CORE_TABLE_PAGES_H_

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace tf_ext {

// The page size of mapped memory, if the system supports it: pages of 4 KiB,
// for memory that may stay nearly unused (a huge page is resident as a whole),
// or huge pages of 2 MiB, for memory of at least that size.
enum class PageSize { kSmall, kHuge };

class Pages {
 public:
  static constexpr size_t kAlignment = 64;  // a cache line
  static constexpr size_t kHugePageBytes = 2 << 20;

  // Rounds up to a multiple of the alignment.
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
        bytes_(std::exchange(other.bytes_, 0)),
        page_bytes_(other.page_bytes_) {}
  Pages& operator=(Pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(page_bytes_, other.page_bytes_);
    return *this;
  }

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // The granularity of Discard.
  size_t page_bytes() const { return page_bytes_; }

  // Returns the whole pages in [begin, end) to the system until they are
  // touched again; their contents are lost. Returns whether there are any. Only
  // mapped memory has such pages.
  bool Discard(size_t begin, size_t end) const {
    begin = (begin + page_bytes_ - 1) / page_bytes_ * page_bytes_;
    end = end / page_bytes_ * page_bytes_;
    return begin < end &&
           madvise(data_ + begin, end - begin, MADV_DONTNEED) == 0;
  }

 private:
  // Smaller blocks would waste a page and a system call each.
  static constexpr size_t kMinMappedBytes = 16 << 10;
  bool mapped() const { return bytes_ >= kMinMappedBytes; }

  void Map(PageSize page_size) {
    const bool huge = page_size == PageSize::kHuge && bytes_ >= kHugePageBytes;
    // Huge pages are aligned to their size.
    const size_t spare = huge ? kHugePageBytes : 0;
    void* const mapping =
        mmap(nullptr, bytes_ + spare, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t*>(mapping);
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    // This is only advice: a system that ignores it is slower.
    page_bytes_ = huge ? kHugePageBytes : page;
    if (huge) {
      const size_t past = reinterpret_cast<uintptr_t>(data_) % kHugePageBytes;
      const size_t before = (kHugePageBytes - past) % kHugePageBytes;
      data_ += before;
      if (before > 0) munmap(mapping, before);
      // Else munmap fails: the tail begins at a page.
      const size_t whole = (bytes_ + page - 1) / page * page;
      if (before < spare) munmap(data_ + whole, spare - before);
      madvise(data_, bytes_, MADV_HUGEPAGE);
    } else if (page_size == PageSize::kSmall) {
      madvise(data_, bytes_, MADV_NOHUGEPAGE);
    }
  }

  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  size_t page_bytes_ = kHugePageBytes;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_TABLE_PAGES_H_
