// SPDX-License-Identifier: Apache-2.0
#include "tests/serve/journal/faulty_vfs.h"

#include <signal.h>
#include <sqlite3.h>

#include <atomic>
#include <functional>

namespace stoch::test {
namespace {

Faults faults;
std::atomic<int64_t> writes = 0;
sqlite3_vfs* base = nullptr;

struct File {
  sqlite3_file head;  // what SQLite sees; the base's own file follows this struct
};

sqlite3_file* Inner(sqlite3_file* file) { return reinterpret_cast<sqlite3_file*>(reinterpret_cast<File*>(file) + 1); }

// Counts one write; `part` does it up to some of it.
int Count(const std::function<int(int part)>& part) {
  const int64_t number = ++writes;
  if (faults.kill_at == number) {
    if (faults.kill_part > 0) (void)part(faults.kill_part);
    raise(SIGKILL);
  }
  if (faults.full_from != 0 && number >= faults.full_from) return SQLITE_FULL;
  return part(2);
}

int Close(sqlite3_file* file) { return Inner(file)->pMethods->xClose(Inner(file)); }
int Read(sqlite3_file* file, void* to, int bytes, sqlite3_int64 at) {
  return Inner(file)->pMethods->xRead(Inner(file), to, bytes, at);
}
int Write(sqlite3_file* file, const void* from, int bytes, sqlite3_int64 at) {
  return Count(
      [&](int part) { return Inner(file)->pMethods->xWrite(Inner(file), from, part == 2 ? bytes : bytes / 2, at); });
}
int Truncate(sqlite3_file* file, sqlite3_int64 size) {
  return Count([&](int) { return Inner(file)->pMethods->xTruncate(Inner(file), size); });
}
int Sync(sqlite3_file* file, int flags) {
  return Count([&](int) { return Inner(file)->pMethods->xSync(Inner(file), flags); });
}
int FileSize(sqlite3_file* file, sqlite3_int64* size) { return Inner(file)->pMethods->xFileSize(Inner(file), size); }
int Lock(sqlite3_file* file, int level) { return Inner(file)->pMethods->xLock(Inner(file), level); }
int Unlock(sqlite3_file* file, int level) { return Inner(file)->pMethods->xUnlock(Inner(file), level); }
int CheckReservedLock(sqlite3_file* file, int* is_locked) {
  return Inner(file)->pMethods->xCheckReservedLock(Inner(file), is_locked);
}
int FileControl(sqlite3_file* file, int what, void* argument) {
  return Inner(file)->pMethods->xFileControl(Inner(file), what, argument);
}
int SectorSize(sqlite3_file* file) { return Inner(file)->pMethods->xSectorSize(Inner(file)); }
int DeviceCharacteristics(sqlite3_file* file) { return Inner(file)->pMethods->xDeviceCharacteristics(Inner(file)); }

// No shared memory: a journal has its file for itself.
const sqlite3_io_methods kMethods = {1,
                                     Close,
                                     Read,
                                     Write,
                                     Truncate,
                                     Sync,
                                     FileSize,
                                     Lock,
                                     Unlock,
                                     CheckReservedLock,
                                     FileControl,
                                     SectorSize,
                                     DeviceCharacteristics,
                                     nullptr,
                                     nullptr,
                                     nullptr,
                                     nullptr,
                                     nullptr,
                                     nullptr};

int Open(sqlite3_vfs*, const char* name, sqlite3_file* file, int flags, int* out_flags) {
  file->pMethods = nullptr;
  const int code = base->xOpen(base, name, Inner(file), flags, out_flags);
  if (code == SQLITE_OK) file->pMethods = &kMethods;
  return code;
}

}  // namespace

void RegisterFaultyVfs(const Faults& wanted) {
  faults = wanted;
  writes = 0;
  if (base != nullptr) return;
  base = sqlite3_vfs_find(nullptr);
  static sqlite3_vfs vfs = *base;
  vfs.zName = kFaultyVfs;
  vfs.szOsFile = static_cast<int>(sizeof(File)) + base->szOsFile;
  vfs.xOpen = Open;
  sqlite3_vfs_register(&vfs, 0);
}

int64_t FaultyVfsWrites() { return writes; }

}  // namespace stoch::test
