// SPDX-License-Identifier: Apache-2.0
// A set of signs.
//
// Open addressing with linear probing at a load of at most 3/4, so 11 to 22
// bytes a sign once it has grown. A place that holds 0 is free; the sign 0
// itself is kept beside the places.
#ifndef TF_EXT_CC_CORE_SNAPSHOT_SIGN_SET_H_
#define TF_EXT_CC_CORE_SNAPSHOT_SIGN_SET_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/hashing/mix.h"

namespace tf_ext {

class SignSet {
 public:
  SignSet() : places_(kLeastPlaces) {}

  int64_t size() const { return used_ + has_zero_; }

  // Whether the sign was not there yet. Throws std::bad_alloc.
  bool Add(int64_t sign) {
    if (sign == 0) return !std::exchange(has_zero_, true);
    size_t place = PlaceOf(sign);
    if (places_[place] == sign) return false;
    if ((used_ + 1) * 4 > static_cast<int64_t>(places_.size()) * 3) {
      Grow();
      place = PlaceOf(sign);
    }
    places_[place] = sign;
    ++used_;
    return true;
  }

  // Whether the sign was there.
  bool Remove(int64_t sign) {
    if (sign == 0) return std::exchange(has_zero_, false);
    size_t hole = PlaceOf(sign);
    if (places_[hole] == 0) return false;
    // What follows moves up, unless it would come to lie before its home.
    const size_t mask = places_.size() - 1;
    for (size_t at = (hole + 1) & mask; places_[at] != 0;
         at = (at + 1) & mask) {
      const size_t home = TableHash(places_[at]) & mask;
      if (((at - home) & mask) < ((at - hole) & mask)) continue;
      places_[hole] = places_[at];
      hole = at;
    }
    places_[hole] = 0;
    --used_;
    return true;
  }

  bool Contains(int64_t sign) const {
    return sign == 0 ? has_zero_ : places_[PlaceOf(sign)] == sign;
  }

  // All of them, in no order. Throws std::bad_alloc.
  std::vector<int64_t> Signs() const {
    std::vector<int64_t> signs;
    signs.reserve(size());
    if (has_zero_) signs.push_back(0);
    for (const int64_t sign : places_) {
      if (sign != 0) signs.push_back(sign);
    }
    return signs;
  }

 private:
  static constexpr size_t kLeastPlaces = 16;

  // Where the sign is, or the free place where it belongs.
  size_t PlaceOf(int64_t sign) const {
    const size_t mask = places_.size() - 1;
    size_t place = TableHash(sign) & mask;
    while (places_[place] != 0 && places_[place] != sign) {
      place = (place + 1) & mask;
    }
    return place;
  }

  void Grow() {
    std::vector<int64_t> old(places_.size() * 2);
    places_.swap(old);
    for (const int64_t sign : old) {
      if (sign != 0) places_[PlaceOf(sign)] = sign;
    }
  }

  std::vector<int64_t> places_;  // their number is a power of two
  int64_t used_ = 0;
  bool has_zero_ = false;
};

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SNAPSHOT_SIGN_SET_H_
