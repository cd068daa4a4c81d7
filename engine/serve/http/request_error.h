// SPDX-License-Identifier: Apache-2.0
// A request that cannot be answered as asked, with the HTTP status that says so.
#pragma once

#include <string>
#include <utility>

#include "kernels/base/error.h"

namespace stoch::serve {

class RequestError : public InvalidInput {
 public:
  // param: the field at fault with its index ("prompt[2][7]"), "" where it is the request as a whole.
  RequestError(int status, std::string param, const std::string& message)
      : InvalidInput(message), status_(status), param_(std::move(param)) {}
  int status() const { return status_; }
  const std::string& param() const { return param_; }

 private:
  int status_;
  std::string param_;
};

// An error as response body, in OpenAI's shape: {"error": {"message", "type", "param", "code"}}.
std::string ErrorText(int status, const std::string& message, const std::string& param);

}  // namespace stoch::serve
