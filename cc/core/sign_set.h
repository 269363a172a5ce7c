// A set of signs, of which nothing is ever removed.
//
// Open addressing with linear probing at a load of at most 3/4, so 11 to 22
// bytes a sign once it has grown. A place that holds 0 is free; the sign 0
// itself is kept beside the places.
#ifndef TF_EXT_CC_CORE_SIGN_SET_H_
#define TF_EXT_CC_CORE_SIGN_SET_H_

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "cc/core/mix.h"

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

  bool Contains(int64_t sign) const {
    return sign == 0 ? has_zero_ : places_[PlaceOf(sign)] == sign;
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

#endif  // TF_EXT_CC_CORE_SIGN_SET_H_
