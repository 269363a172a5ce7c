// SPDX-License-Identifier: Apache-2.0
// Texts of errors.
#ifndef TF_EXT_CC_CORE_SUPPORT_MESSAGE_H_
#define TF_EXT_CC_CORE_SUPPORT_MESSAGE_H_

#include <limits>
#include <sstream>
#include <string>
#include <string_view>

#include "cc/core/support/status.h"

namespace tf_ext {

// A text that came from outside, made short and printable.
inline std::string Quoted(std::string_view text) {
  constexpr size_t kMaxChars = 64;
  constexpr char kHex[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text.substr(0, kMaxChars)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f) {
      quoted += c;
    } else {
      quoted += {'\\', 'x', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return quoted + (text.size() > kMaxChars ? "...\"" : "\"");
}

// An error whose message is the pieces, one after another.
template <typename... Pieces>
Status Invalid(const Pieces&... pieces) {
  std::ostringstream message;
  message.precision(std::numeric_limits<float>::max_digits10);
  (message << ... << pieces);
  return Status::InvalidArgument(message.str());
}

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SUPPORT_MESSAGE_H_
