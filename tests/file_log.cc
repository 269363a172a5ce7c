// Writes to $FILE_LOG which files below $FILE_LOG_ROOT a process syncs, renames
// and removes, one call a line. Loaded by LD_PRELOAD, so that what is logged is
// what reaches the system, whoever calls it.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

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

// With the bytes that the file had when it was synced.
int LogSync(int file, int result) {
  char link[64], path[4096], bytes[32];
  snprintf(link, sizeof(link), "/proc/self/fd/%d", file);
  const ssize_t size = readlink(link, path, sizeof(path) - 1);
  struct stat found;
  if (result != 0 || size < 0 || fstat(file, &found) != 0) return result;
  path[size] = '\0';
  snprintf(bytes, sizeof(bytes), "%lld", static_cast<long long>(found.st_size));
  Log("sync", path, S_ISDIR(found.st_mode) ? "directory" : bytes);
  return result;
}

}  // namespace

extern "C" {

int fsync(int file) { return LogSync(file, Next("fsync", &fsync)(file)); }

int fdatasync(int file) {
  return LogSync(file, Next("fdatasync", &fdatasync)(file));
}

int rename(const char* from, const char* to) {
  Log("rename", from, to);
  return Next("rename", &rename)(from, to);
}

int unlink(const char* path) {
  Log("remove", path, "-");
  return Next("unlink", &unlink)(path);
}

}  // extern "C"
