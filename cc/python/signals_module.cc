// SPDX-License-Identifier: Apache-2.0
#include <signal.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "cc/python/modules.h"

namespace tf_ext {
namespace {

namespace py = pybind11;

constexpr std::chrono::milliseconds kInterval{1};

bool AreSame(const struct sigaction& one, const struct sigaction& other) {
  // Handlers with and without SA_SIGINFO share a union.
  return one.sa_handler == other.sa_handler && one.sa_flags == other.sa_flags;
}

// Keeps the handler of a signal in a `with` block. Others set handlers of their
// own in code that holds the GIL for minutes, so a thread without it looks.
class KeptSignalHandler {
 public:
  explicit KeptSignalHandler(int number) : number_(number) {}
  ~KeptSignalHandler() { Exit(); }
  KeptSignalHandler(const KeptSignalHandler&) = delete;
  KeptSignalHandler& operator=(const KeptSignalHandler&) = delete;

  void Enter() {
    if (thread_.joinable()) throw py::value_error("The block has begun.");
    if (sigaction(number_, nullptr, &kept_) != 0) {
      throw py::value_error("Argument `number` must be a signal. Received: " +
                            std::to_string(number_));
    }
    has_ended_ = false;
    // The thread takes no signals from those that wait for them.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
      thread_ = std::thread([this] { Watch(); });
    } catch (...) {
      pthread_sigmask(SIG_SETMASK, &before, nullptr);
      throw;
    }
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void Exit() {
    if (!thread_.joinable()) return;
    has_ended_ = true;
    thread_.join();  // It needs no GIL, and ends within the interval.
  }

 private:
  void Watch() {
    while (!has_ended_) {
      Restore();
      std::this_thread::sleep_for(kInterval);
    }
    Restore();
  }

  void Restore() {
    struct sigaction found;
    if (sigaction(number_, nullptr, &found) == 0 && !AreSame(found, kept_)) {
      sigaction(number_, &kept_, nullptr);
    }
  }

  const int number_;
  struct sigaction kept_ = {};
  std::atomic<bool> has_ended_{true};
  std::thread thread_;
};

}  // namespace

void DefineSignals(py::module_* m) {
  py::class_<KeptSignalHandler>(*m, "KeptSignalHandler")
      .def(py::init<int>(), py::arg("number"))
      .def("__enter__", &KeptSignalHandler::Enter)
      .def("__exit__",
           [](KeptSignalHandler& kept, const py::args&) { kept.Exit(); });
}

}  // namespace tf_ext
