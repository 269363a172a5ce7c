// What a process asks of the system about the files of a folder, in order: for
// LD_PRELOAD. Calls are appended to the file $FILE_CALLS_LOG as lines "write
// NAME", "fsync NAME" and "rename NAME NAME", where a name is relative to
// $FILE_CALLS_FOLDER and the folder itself is ".". Consecutive writes of a file
// are one line.
//
// kill_at(n) has the process end by SIGKILL instead of the n-th call, counted
// from 0; of the writes of a file each one counts.
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::string last;
long calls = 0;
long kill_call = -1;

template <typename Function>
Function Next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

// The name in the watched folder; empty: elsewhere.
std::string NameOf(const char* path) {
  const char* folder = getenv("FILE_CALLS_FOLDER");
  if (folder == nullptr) return "";
  const std::string watched(folder);
  const std::string found(path);
  if (found == watched) return ".";
  if (found.rfind(watched + "/", 0) != 0) return "";
  return found.substr(watched.size() + 1);
}

std::string NameOf(int file) {
  char path[PATH_MAX + 1];
  char link[64];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t size = readlink(link, path, PATH_MAX);
  if (size < 0) return "";
  path[size] = 0;
  return NameOf(path);
}

void Log(const char* call, const std::string& names) {
  const std::lock_guard<std::mutex> lock(mutex);
  if (calls++ == kill_call) kill(getpid(), SIGKILL);
  const std::string line = std::string(call) + " " + names + "\n";
  if (line == last && strcmp(call, "write") == 0) return;
  last = line;
  const char* path = getenv("FILE_CALLS_LOG");
  if (path == nullptr) return;
  const int log = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  static const auto write_log = Next<decltype(&write)>("write");
  if (write_log(log, line.data(), line.size()) < 0) abort();
  close(log);
}

void LogFile(const char* call, int file) {
  const std::string name = NameOf(file);
  if (!name.empty()) Log(call, name);
}

}  // namespace

extern "C" {

void kill_at(long call) {
  calls = 0;
  kill_call = call;
}

long count_calls() { return calls; }

ssize_t write(int file, const void* data, size_t size) {
  LogFile("write", file);
  return Next<decltype(&write)>("write")(file, data, size);
}

ssize_t writev(int file, const struct iovec* parts, int count) {
  LogFile("write", file);
  return Next<decltype(&writev)>("writev")(file, parts, count);
}

ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  LogFile("write", file);
  return Next<decltype(&pwrite)>("pwrite")(file, data, size, offset);
}

ssize_t pwrite64(int file, const void* data, size_t size, off64_t offset) {
  LogFile("write", file);
  return Next<decltype(&pwrite64)>("pwrite64")(file, data, size, offset);
}

int fsync(int file) {
  LogFile("fsync", file);
  return Next<decltype(&fsync)>("fsync")(file);
}

int rename(const char* from, const char* to) {
  const std::string names = NameOf(from) + " " + NameOf(to);
  if (names != " ") Log("rename", names);
  return Next<decltype(&rename)>("rename")(from, to);
}

}  // extern "C"
