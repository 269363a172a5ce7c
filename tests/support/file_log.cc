// SPDX-License-Identifier: Apache-2.0
// Writes to $FILE_LOG which files below $FILE_LOG_ROOT a process syncs, renames
// and removes, one call a line. Loaded by LD_PRELOAD, so that what is logged is
// what reaches the system, whoever calls it.
//
// After kill_at(n) the process is killed instead of the n-th call of these and
// of the writes to such files, counted from 0.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

template <typename Function>
Function* Next(const char* name, Function*) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

bool IsBelowRoot(const char* path) {
  const char* const root = getenv("FILE_LOG_ROOT");
  return root != nullptr && strncmp(path, root, strlen(root)) == 0;
}

void Log(const char* call, const char* path, const char* more) {
  const int error = errno;
  const char* const log = getenv("FILE_LOG");
  if (log == nullptr || !IsBelowRoot(path)) return;
  char line[10000];
  const int size = snprintf(line, sizeof(line), "%s %s %s\n", call, path, more);
  const int file = open(log, O_WRONLY | O_CREAT | O_APPEND, 0666);
  if (file < 0 || write(file, line, size) != size) abort();
  close(file);
  errno = error;
}

std::atomic<int> calls{0};
std::atomic<int> killed_call{-1};

void Count(const char* path) {
  if (IsBelowRoot(path) && calls++ == killed_call) kill(getpid(), SIGKILL);
}

// The path of an open file; empty if it has none.
struct PathOf {
  explicit PathOf(int file) {
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
    const ssize_t size = readlink(link, text, sizeof(text) - 1);
    text[size < 0 ? 0 : size] = '\0';
  }
  char text[4096];
};

// With the bytes that the file had when it was synced.
int LogSync(int file, const char* path, int result) {
  char bytes[32];
  struct stat found;
  if (result != 0 || fstat(file, &found) != 0) return result;
  snprintf(bytes, sizeof(bytes), "%lld", static_cast<long long>(found.st_size));
  Log("sync", path, S_ISDIR(found.st_mode) ? "directory" : bytes);
  return result;
}

}  // namespace

extern "C" {

void kill_at(int call) {
  calls = 0;
  killed_call = call;
}

int count_calls() { return calls; }

ssize_t write(int file, const void* data, size_t size) {
  Count(PathOf(file).text);
  return Next("write", &write)(file, data, size);
}

ssize_t pwrite(int file, const void* data, size_t size, off_t offset) {
  Count(PathOf(file).text);
  return Next("pwrite", &pwrite)(file, data, size, offset);
}

ssize_t pwrite64(int file, const void* data, size_t size, off64_t offset) {
  Count(PathOf(file).text);
  return Next("pwrite64", &pwrite64)(file, data, size, offset);
}

int fsync(int file) {
  const PathOf path(file);
  Count(path.text);
  return LogSync(file, path.text, Next("fsync", &fsync)(file));
}

int fdatasync(int file) {
  const PathOf path(file);
  Count(path.text);
  return LogSync(file, path.text, Next("fdatasync", &fdatasync)(file));
}

int rename(const char* from, const char* to) {
  Count(from);
  Log("rename", from, to);
  return Next("rename", &rename)(from, to);
}

int unlink(const char* path) {
  Count(path);
  Log("remove", path, "-");
  return Next("unlink", &unlink)(path);
}

}  // extern "C"
