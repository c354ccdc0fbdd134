/* Lets one call of a process fail: any that makes, renames or writes a file, or starts a process or a thread.

   A library for LD_PRELOAD. The functions are all those of libc by which a program does such a thing, so a write
   that is new in the program is counted without a word here. fault_arm() begins a count; calls are logged to a
   descriptor, a line each. What a child does is not counted: only that it was started. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int log_fd = -1; /* -1: nothing is counted */
static long next_call, failing;
static int error_code, lasting;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Count from here on, and let call `which` fail with `error`; with `forever`, all later ones to files too. */
void fault_arm(int log, long which, int error, int forever)
{
    next_call = 0, failing = which, error_code = error, lasting = forever, log_fd = log;
}

/* Count a call, and return whether it has to fail; errno is set then. */
static int fault(const char *name, const char *what, int of_files)
{
    if (log_fd < 0)
        return 0;
    pthread_mutex_lock(&lock);
    long call = next_call++;
    int fails = call == failing || (lasting && of_files && failing >= 0 && call > failing);
    char line[600];
    int length = snprintf(line, sizeof line, "%s%s %.500s\n", fails ? "! " : "", name, what);
    syscall(SYS_write, log_fd, line, (size_t)length);
    pthread_mutex_unlock(&lock);
    if (fails)
        errno = error_code;
    return fails;
}

/* The same for a write to an open file. Pipes, terminals and sockets do not count, nor what is printed. */
static int fault_of(const char *name, int fd)
{
    struct stat about;
    if (log_fd < 0 || fd <= 2 || fstat(fd, &about) || !S_ISREG(about.st_mode))
        return 0;
    char place[40], path[500];
    snprintf(place, sizeof place, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(place, path, sizeof path - 1);
    path[length < 0 ? 0 : length] = 0;
    return fault(name, path, 1);
}

#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define OPEN(name, ...)                                             \
    {                                                                   \
        mode_t mode = 0;                                                \
        if (flags & (O_CREAT | O_TMPFILE)) {                            \
            va_list rest;                                               \
            va_start(rest, flags);                                      \
            mode = va_arg(rest, mode_t);                                \
            va_end(rest);                                               \
        }                                                               \
        if (WRITES(flags) && strncmp(path, "/dev/", 5) && fault(#name, path, 1)) \
            return -1;                                                  \
        return REAL(name)(__VA_ARGS__, mode);                           \
    }

int open(const char *path, int flags, ...) OPEN(open, path, flags)
int open64(const char *path, int flags, ...) OPEN(open64, path, flags)
int openat(int at, const char *path, int flags, ...) OPEN(openat, at, path, flags)
int openat64(int at, const char *path, int flags, ...) OPEN(openat64, at, path, flags)

#define ON_PATH(result, name, parameters, path, arguments)  \
    result name parameters                                  \
    {                                                       \
        return fault(#name, path, 1) ? -1 : REAL(name) arguments; \
    }
#define ON_FILE(result, name, parameters, fd, arguments)    \
    result name parameters                                  \
    {                                                       \
        return fault_of(#name, fd) ? -1 : REAL(name) arguments; \
    }

ON_PATH(int, creat, (const char *path, mode_t mode), path, (path, mode))
ON_PATH(int, creat64, (const char *path, mode_t mode), path, (path, mode))
ON_PATH(int, mkdir, (const char *path, mode_t mode), path, (path, mode))
ON_PATH(int, mkdirat, (int at, const char *path, mode_t mode), path, (at, path, mode))
ON_PATH(int, mkfifo, (const char *path, mode_t mode), path, (path, mode))
ON_PATH(int, rename, (const char *from, const char *to), to, (from, to))
ON_PATH(int, renameat, (int a, const char *from, int b, const char *to), to, (a, from, b, to))
ON_PATH(int, renameat2, (int a, const char *from, int b, const char *to, unsigned flags), to,
        (a, from, b, to, flags))
ON_PATH(int, link, (const char *from, const char *to), to, (from, to))
ON_PATH(int, linkat, (int a, const char *from, int b, const char *to, int flags), to, (a, from, b, to, flags))
ON_PATH(int, symlink, (const char *from, const char *to), to, (from, to))
ON_PATH(int, symlinkat, (const char *from, int b, const char *to), to, (from, b, to))
ON_PATH(int, truncate, (const char *path, off_t length), path, (path, length))
ON_PATH(int, truncate64, (const char *path, off64_t length), path, (path, length))
ON_PATH(int, chmod, (const char *path, mode_t mode), path, (path, mode))
ON_PATH(int, fchmodat, (int at, const char *path, mode_t mode, int flags), path, (at, path, mode, flags))
ON_PATH(int, utimensat, (int at, const char *path, const struct timespec times[2], int flags), path,
        (at, path, times, flags))
ON_FILE(int, fchmod, (int fd, mode_t mode), fd, (fd, mode))
ON_FILE(int, ftruncate, (int fd, off_t length), fd, (fd, length))
ON_FILE(int, ftruncate64, (int fd, off64_t length), fd, (fd, length))
ON_FILE(int, fsync, (int fd), fd, (fd))
ON_FILE(int, fdatasync, (int fd), fd, (fd))
ON_FILE(ssize_t, pwrite, (int fd, const void *data, size_t size, off_t at), fd, (fd, data, size, at))
ON_FILE(ssize_t, pwrite64, (int fd, const void *data, size_t size, off64_t at), fd, (fd, data, size, at))
ON_FILE(ssize_t, writev, (int fd, const struct iovec *parts, int count), fd, (fd, parts, count))
ON_FILE(ssize_t, sendfile, (int fd, int from, off_t *at, size_t size), fd, (fd, from, at, size))
ON_FILE(ssize_t, sendfile64, (int fd, int from, off64_t *at, size_t size), fd, (fd, from, at, size))
ON_FILE(ssize_t, copy_file_range, (int from, off64_t *a, int fd, off64_t *b, size_t size, unsigned flags), fd,
        (from, a, fd, b, size, flags))

/* A full disk takes what still fits: half of it here, and the rest is refused when it is written again. */
ssize_t write(int fd, const void *data, size_t size)
{
    static int cut = -1;
    if (!fault_of("write", fd))
        return REAL(write)(fd, data, size);
    if (error_code != ENOSPC || cut == fd || size < 2)
        return -1;
    cut = fd;
    return REAL(write)(fd, data, size / 2);
}

FILE *fopen(const char *path, const char *mode)
{
    return strpbrk(mode, "wa+") && fault("fopen", path, 1) ? NULL : REAL(fopen)(path, mode);
}
FILE *fopen64(const char *path, const char *mode)
{
    return strpbrk(mode, "wa+") && fault("fopen64", path, 1) ? NULL : REAL(fopen64)(path, mode);
}

static pid_t started(pid_t pid)
{
    if (pid == 0)
        log_fd = -1;
    return pid;
}
pid_t fork(void)
{
    return fault("fork", "", 0) ? -1 : started(REAL(fork)());
}
/* A function that returns twice in one frame cannot be wrapped; fork does the same, with memory of its own. */
pid_t vfork(void)
{
    return fault("vfork", "", 0) ? -1 : started(REAL(fork)());
}
int posix_spawn(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
    return fault("posix_spawn", path, 0) ? error_code
                                         : REAL(posix_spawn)(pid, path, actions, attributes, arguments, environment);
}
int posix_spawnp(pid_t *pid, const char *path, const posix_spawn_file_actions_t *actions,
                 const posix_spawnattr_t *attributes, char *const arguments[], char *const environment[])
{
    return fault("posix_spawnp", path, 0) ? error_code
                                          : REAL(posix_spawnp)(pid, path, actions, attributes, arguments, environment);
}
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
    return fault("pthread_create", "", 0) ? EAGAIN : REAL(pthread_create)(thread, attributes, run, argument);
}
