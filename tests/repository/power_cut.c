/* Records what a process does to files below a folder, and kills it after so many events.

   POWER_CUT_BELOW: the folder. POWER_CUT_TRACE: the file of the events, a line each. POWER_CUT_AT:
   the number of the event after which the process is killed (0: never). An event is recorded when
   it was done: C created, W written, S synced, N new name of a file, R renamed, D deleted, M folder
   made, Y everything synced. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static long count;

static void full(int dir, const char *path, char *out) {
    char folder[PATH_MAX] = "", link[64];
    if (path[0] == '/') { snprintf(out, PATH_MAX, "%s", path); return; }
    snprintf(link, sizeof link, dir == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", dir);
    ssize_t n = readlink(link, folder, sizeof folder - 1);
    folder[n < 0 ? 0 : n] = 0;
    if (path[0]) snprintf(out, PATH_MAX, "%s/%s", folder, path);
    else snprintf(out, PATH_MAX, "%s", folder);
}

static void event(char kind, const char *one, const char *other) {
    const char *below = getenv("POWER_CUT_BELOW"), *trace = getenv("POWER_CUT_TRACE");
    if (!below || !trace) return;
    size_t n = strlen(below);
    if (kind != 'Y' && strncmp(one, below, n) && (!other || strncmp(other, below, n))) return;
    int before = errno;
    char line[2 * PATH_MAX + 8];
    int size = snprintf(line, sizeof line, "%c\t%s\t%s\n", kind, one, other ? other : "");
    pthread_mutex_lock(&lock);
    int fd = syscall(SYS_openat, AT_FDCWD, trace, O_WRONLY | O_APPEND | O_CREAT, 0600);
    syscall(SYS_write, fd, line, size);
    syscall(SYS_close, fd);
    const char *at = getenv("POWER_CUT_AT");
    if (at && ++count == atol(at)) { syscall(SYS_kill, getpid(), SIGKILL); for (;;) pause(); }
    pthread_mutex_unlock(&lock);
    errno = before;
}

static void of_fd(char kind, int fd) {
    char path[PATH_MAX];
    full(fd, "", path);
    event(kind, path, NULL);
}

#define NEXT(name) static __typeof__(name) *next; if (!next) next = dlsym(RTLD_NEXT, #name)

static int opened(int dir, const char *path, int flags, int made) {
    char where[PATH_MAX];
    if (!(flags & (O_CREAT | O_TRUNC))) return 0;
    full(dir, path, where);
    event(made ? 'C' : 'W', where, NULL);
    return 0;
}
static int is_new(int dir, const char *path, int flags) {
    struct stat found;
    return (flags & O_CREAT) && fstatat(dir, path, &found, 0) != 0;
}
#define MODE mode_t mode = 0; \
    if (flags & (O_CREAT | O_TMPFILE)) { va_list a; va_start(a, flags); mode = va_arg(a, mode_t); va_end(a); }
#define OPEN(name) int name(const char *path, int flags, ...) { MODE; NEXT(name); \
    int made = is_new(AT_FDCWD, path, flags), fd = next(path, flags, mode); \
    if (fd >= 0 && (made || (flags & O_TRUNC))) opened(AT_FDCWD, path, flags, made); return fd; }
#define OPENAT(name) int name(int dir, const char *path, int flags, ...) { MODE; NEXT(name); \
    int made = is_new(dir, path, flags), fd = next(dir, path, flags, mode); \
    if (fd >= 0 && (made || (flags & O_TRUNC))) opened(dir, path, flags, made); return fd; }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

#define DONE(ok, call) do { if (ok) { int e_ = errno; call; errno = e_; } return done; } while (0)
ssize_t write(int fd, const void *data, size_t n) { NEXT(write); ssize_t done = next(fd, data, n); DONE(done > 0, of_fd('W', fd)); }
ssize_t pwrite64(int fd, const void *data, size_t n, off64_t o) { NEXT(pwrite64); ssize_t done = next(fd, data, n, o); DONE(done > 0, of_fd('W', fd)); }
ssize_t writev(int fd, const struct iovec *v, int n) { NEXT(writev); ssize_t done = next(fd, v, n); DONE(done > 0, of_fd('W', fd)); }
ssize_t copy_file_range(int a, off64_t *x, int b, off64_t *y, size_t n, unsigned f) { NEXT(copy_file_range); ssize_t done = next(a, x, b, y, n, f); DONE(done > 0, of_fd('W', b)); }
ssize_t sendfile64(int b, int a, off64_t *x, size_t n) { static ssize_t (*next)(int, int, off64_t *, size_t); if (!next) next = dlsym(RTLD_NEXT, "sendfile64"); ssize_t done = next(b, a, x, n); DONE(done > 0, of_fd('W', b)); }
int ftruncate(int fd, off_t n) { NEXT(ftruncate); int done = next(fd, n); DONE(!done, of_fd('W', fd)); }
int ftruncate64(int fd, off64_t n) { NEXT(ftruncate64); int done = next(fd, n); DONE(!done, of_fd('W', fd)); }
int fsync(int fd) { NEXT(fsync); int done = next(fd); DONE(!done, of_fd('S', fd)); }
int fdatasync(int fd) { NEXT(fdatasync); int done = next(fd); DONE(!done, of_fd('S', fd)); }
void sync(void) { event('Y', "", NULL); }

static int two(char kind, int da, const char *a, int db, const char *b) {
    char one[PATH_MAX], other[PATH_MAX];
    full(da, a, one); full(db, b, other);
    event(kind, one, other);
    return 0;
}
int rename(const char *a, const char *b) { NEXT(rename); int done = next(a, b); DONE(!done, two('R', AT_FDCWD, a, AT_FDCWD, b)); }
int renameat(int x, const char *a, int y, const char *b) { NEXT(renameat); int done = next(x, a, y, b); DONE(!done, two('R', x, a, y, b)); }
int renameat2(int x, const char *a, int y, const char *b, unsigned f) { NEXT(renameat2); int done = next(x, a, y, b, f); DONE(!done, two('R', x, a, y, b)); }
int link(const char *a, const char *b) { NEXT(link); int done = next(a, b); DONE(!done, two('N', AT_FDCWD, a, AT_FDCWD, b)); }
int linkat(int x, const char *a, int y, const char *b, int f) { NEXT(linkat); int done = next(x, a, y, b, f); DONE(!done, two('N', x, a, y, b)); }
static int one(char kind, int dir, const char *path) { char where[PATH_MAX]; full(dir, path, where); event(kind, where, NULL); return 0; }
int unlink(const char *p) { NEXT(unlink); int done = next(p); DONE(!done, one('D', AT_FDCWD, p)); }
int unlinkat(int d, const char *p, int f) { NEXT(unlinkat); int done = next(d, p, f); DONE(!done, one('D', d, p)); }
int rmdir(const char *p) { NEXT(rmdir); int done = next(p); DONE(!done, one('D', AT_FDCWD, p)); }
int mkdir(const char *p, mode_t m) { NEXT(mkdir); int done = next(p, m); DONE(!done, one('M', AT_FDCWD, p)); }
int mkdirat(int d, const char *p, mode_t m) { NEXT(mkdirat); int done = next(d, p, m); DONE(!done, one('M', d, p)); }
