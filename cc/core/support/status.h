// SPDX-License-Identifier: Apache-2.0
// Result of a core call that can fail. The core knows neither TensorFlow nor
// absl, so that the pybind11 module can use it without either.
#ifndef TF_EXT_CC_CORE_SUPPORT_STATUS_H_
#define TF_EXT_CC_CORE_SUPPORT_STATUS_H_

#include <string>
#include <utility>

namespace tf_ext {

enum class StatusCode {
  kOk,
  kInvalidArgument,
  kFailedPrecondition,
  kNotFound,
  kResourceExhausted,
  kDataLoss,
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message)
      : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }
  static Status InvalidArgument(std::string message) {
    return Status(StatusCode::kInvalidArgument, std::move(message));
  }
  static Status FailedPrecondition(std::string message) {
    return Status(StatusCode::kFailedPrecondition, std::move(message));
  }
  static Status NotFound(std::string message) {
    return Status(StatusCode::kNotFound, std::move(message));
  }
  static Status ResourceExhausted(std::string message) {
    return Status(StatusCode::kResourceExhausted, std::move(message));
  }
  static Status DataLoss(std::string message) {
    return Status(StatusCode::kDataLoss, std::move(message));
  }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// Returns from the function if `expression` is an error.
#define TF_EXT_RETURN_IF_ERROR(expression)         \
  do {                                             \
    ::tf_ext::Status tf_ext_status = (expression); \
    if (!tf_ext_status.ok()) return tf_ext_status; \
  } while (false)

}  // namespace tf_ext

#endif  // TF_EXT_CC_CORE_SUPPORT_STATUS_H_
