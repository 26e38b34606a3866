// Preloaded into User Mode Linux: an interrupt that comes while it goes to sleep wakes it up.
//
// UML's devices interrupt it by SIGIO. While its kernel has interrupts disabled, the handler only takes a note. An idle
// kernel disables them, sees that there is nothing to do, and sleeps in poll() on its timer: a SIGIO between the two is
// noted and slept over, up to the next tick 10 ms later. (Linux 7.2, arch/um/os-Linux: os_idle_sleep blocks SIGALRM for
// this reason, not SIGIO.) The faster a backend answers, the more of its interrupts fall into that gap; the figures would
// be those of UML's clock.
//
// So the sleep begins with SIGIO blocked, does not take place if one has come that was not looked at (UML does that by
// epoll_wait), and lets in those that come only while it lasts, which ends it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>

static void (*handle)(int, siginfo_t *, void *);
static volatile sig_atomic_t came;

static void on_io(int number, siginfo_t *info, void *context) {
    came = 1;
    handle(number, info, context);
}

int sigaction(int number, const struct sigaction *action, struct sigaction *old) {
    static int (*real)(int, const struct sigaction *, struct sigaction *);
    if (!real) real = dlsym(RTLD_NEXT, "sigaction");
    void (*before)(int, siginfo_t *, void *) = handle;
    struct sigaction own;
    if (number == SIGIO && action && action->sa_flags & SA_SIGINFO) {
        own = *action;
        handle = own.sa_sigaction;
        own.sa_sigaction = on_io;
        action = &own;
    }
    int result = real(number, action, old);
    // UML puts back what it has read here, after it has tried out which files raise SIGIO.
    if (old && old->sa_flags & SA_SIGINFO && old->sa_sigaction == on_io) old->sa_sigaction = before;
    return result;
}

int epoll_wait(int set, struct epoll_event *events, int room, int timeout) {
    static int (*real)(int, struct epoll_event *, int, int);
    if (!real) real = dlsym(RTLD_NEXT, "epoll_wait");
    came = 0;
    return real(set, events, room, timeout);
}

int poll(struct pollfd *fds, nfds_t count, int timeout) {
    static int (*real)(struct pollfd *, nfds_t, int);
    if (!real) real = dlsym(RTLD_NEXT, "poll");
    sigset_t io, before;
    sigemptyset(&io);
    sigaddset(&io, SIGIO);
    if (count != 1 || timeout >= 0 || pthread_sigmask(SIG_BLOCK, &io, &before)) return real(fds, count, timeout);
    int ready;
    // With SIGALRM blocked and SIGIO not, it is the idle loop; UML's helper threads poll as well.
    if (sigismember(&before, SIGIO) || !sigismember(&before, SIGALRM)) {
        pthread_sigmask(SIG_SETMASK, &before, NULL);
        return real(fds, count, timeout);
    }
    if (came) {
        came = 0;
        ready = -1;
        errno = EINTR;
    } else {
        ready = ppoll(fds, count, NULL, &before);
    }
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return ready;
}
